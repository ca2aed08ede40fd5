#pragma once

// The scales of a tile's blocks. Each row's maxima come together lane by lane;
// then lane i takes over block i, since a division is expensive and there are
// at most as many blocks in a tile as lanes.

#include "codec/elements.h"
#include "codec/fours.h"
#include "cuda/tile.h"

#include <cstdint>

namespace hvd {

HVD_HOST_DEVICE uint32_t larger(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

/// Bits of the largest magnitude of four.
HVD_HOST_DEVICE uint32_t largest(const Four& four) {
  uint32_t most = 0;
  HVD_UNROLL
  for (float value : four.values) {
    most = larger(most, bits_of(value) & kMagnitudeBits);
  }
  return most;
}

/// The same without values that are not finite.
HVD_HOST_DEVICE uint32_t largest_finite(const Four& four) {
  uint32_t most = 0;
  HVD_UNROLL
  for (float value : four.values) {
    most = larger(most, is_finite(value) ? bits_of(value) & kMagnitudeBits : 0);
  }
  return most;
}

template <typename Team>
using Maxima = typename Team::template PerLane<uint32_t>[kRows];

/// Blocks of several rows: in each of them, the maximum of all.
template <typename Team>
HVD_HOST_DEVICE void join_rows(Team& team, int shift, Maxima<Team>& maxima) {
  team.each([&](int lane) {
    HVD_UNROLL
    for (int apart = 1; apart < kRows; apart *= 2) {
      if ((kRow * apart) >> shift == 0) {
        HVD_UNROLL
        for (int row = 0; row < kRows; row += 2 * apart) {
          HVD_UNROLL
          for (int i = row; i < row + apart; ++i) {
            const uint32_t both =
                larger(maxima[i][lane], maxima[i + apart][lane]);
            maxima[i][lane] = maxima[i + apart][lane] = both;
          }
        }
      }
    }
  });
}

/// Several lanes of one block: each gets the maximum of all.
template <typename Team>
HVD_HOST_DEVICE void join_lanes(Team& team, int shift, Maxima<Team>& maxima) {
  HVD_UNROLL
  for (int apart = 1; apart < kLanes; apart *= 2) {
    if ((kFour * apart) >> shift != 0) {
      continue;
    }
    HVD_UNROLL
    for (auto& row : maxima) {
      typename Team::template PerLane<uint32_t> others;
      team.each([&](int lane) { others[lane] = team.read(row, lane ^ apart); });
      team.each([&](int lane) { row[lane] = larger(row[lane], others[lane]); });
    }
  }
}

/// By lane, the largest magnitude of the block of that number; 0 beyond.
template <typename Team>
HVD_HOST_DEVICE typename Team::template PerLane<uint32_t> largest_of_blocks(
    Team& team,
    int shift,
    Maxima<Team>& maxima) {
  join_rows(team, shift, maxima);
  join_lanes(team, shift, maxima);
  typename Team::template PerLane<uint32_t> largest;
  team.each([&](int lane) {
    const int place = lane << shift;
    largest[lane] = 0;
    HVD_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const uint32_t found = team.read(maxima[row], place % kRow / kFour);
      largest[lane] = place / kRow == row ? found : largest[lane];
    }
  });
  return largest;
}

/// By lane, of the block of that number.
template <typename Team>
struct Scales {
  typename Team::template PerLane<uint32_t> codes;
  typename Team::template PerLane<float> reciprocals;
  /// Whether the fast way is not for it.
  typename Team::template PerLane<bool> unusual;
};

template <typename Element, typename Team>
HVD_HOST_DEVICE Scales<Team> find_scales(
    Team& team,
    int shift,
    Maxima<Team>& maxima) {
  const auto largest = largest_of_blocks(team, shift, maxima);
  Scales<Team> scales;
  team.each([&](int lane) {
    const uint32_t amax = largest[lane];
    const uint32_t code = Scale::encode(amax, Element::kMax);
    const float reciprocal = over(1.0F, Scale::decode_usual(code));
    scales.codes[lane] = code;
    scales.reciprocals[lane] = float_of(bits_of(reciprocal) & Scale::any(amax));
    scales.unusual[lane] =
        amax >= kInfinityBits || (amax != 0 && !Scale::is_usual(code));
  });
  return scales;
}

} // namespace hvd
