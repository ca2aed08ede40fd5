#pragma once

// The values of a tile in the registers of a team, and their residual.

#include "codec/elements.h"
#include "codec/fours.h"
#include "cuda/memory.h"
#include "cuda/tile.h"

namespace hvd {

template <typename Team>
using Values = typename Team::template PerLane<Four>[kRows];

HVD_HOST_DEVICE Four times(const Four& four, float factor) {
  Four product;
  HVD_UNROLL
  for (int i = 0; i < kFour; ++i) {
    product.values[i] = times(four.values[i], factor);
  }
  return product;
}

HVD_HOST_DEVICE Four plus(const Four& a, const Four& b) {
  Four sum;
  HVD_UNROLL
  for (int i = 0; i < kFour; ++i) {
    sum.values[i] = plus(a.values[i], b.values[i]);
  }
  return sum;
}

HVD_HOST_DEVICE Four residual_at(const Tile& tile, int place) {
  return load_floats(tile.residual + place, tile.values_at(place));
}

/// What `decoded` lacks of the values becomes their residual.
HVD_HOST_DEVICE void keep_lost(
    const Tile& tile,
    int place,
    const Four& values,
    const Four& decoded) {
  Four rest;
  HVD_UNROLL
  for (int i = 0; i < kFour; ++i) {
    rest.values[i] = lost(values.values[i], decoded.values[i]);
  }
  store_floats(rest, tile.residual + place, tile.values_at(place));
}

/// The tile's numbers, as load() has them. In a whole tile nothing is asked
/// between the loads, so that none waits for another.
template <typename Team>
HVD_HOST_DEVICE void load_numbers(
    Team& team,
    const Tile& tile,
    Number number,
    Values<Team>& values) {
  const bool is_float = number == Number::Float32;
  team.each([&](int lane) {
    if (tile.is_whole() && is_float && is_aligned(tile.numbers, 16)) {
      const auto* const from = static_cast<const float*>(tile.numbers);
      HVD_UNROLL
      for (int row = 0; row < kRows; ++row) {
        values[row][lane] = load_aligned(from + Tile::place(lane, row));
      }
    } else if (tile.is_whole() && !is_float && is_aligned(tile.numbers, 8)) {
      const auto* const from = static_cast<const uint64_t*>(tile.numbers);
      HVD_UNROLL
      for (int row = 0; row < kRows; ++row) {
        values[row][lane] = unopened(global(from)[row * kLanes + lane]);
      }
    } else {
      HVD_UNROLL
      for (int row = 0; row < kRows; ++row) {
        const int place = Tile::place(lane, row);
        values[row][lane] =
            load(number, tile.numbers, place, tile.values_at(place));
      }
    }
  });
}

/// Adds the tile's residual, if it has one.
template <typename Team>
HVD_HOST_DEVICE void add_residual(
    Team& team,
    const Tile& tile,
    Values<Team>& values) {
  if (tile.residual == nullptr) {
    return;
  }
  team.each([&](int lane) {
    if (tile.is_whole() && is_aligned(tile.residual, 16)) {
      HVD_UNROLL
      for (int row = 0; row < kRows; ++row) {
        Four& four = values[row][lane];
        const float* const from = tile.residual + Tile::place(lane, row);
        four = plus(four, load_aligned(from));
      }
    } else {
      HVD_UNROLL
      for (int row = 0; row < kRows; ++row) {
        Four& four = values[row][lane];
        four = plus(four, residual_at(tile, Tile::place(lane, row)));
      }
    }
  });
}

} // namespace hvd
