#pragma once

// The owner's stage of an all_reduce, a tile at a time: messages are decoded,
// summed in their order and encoded again, all in registers. While a tile is
// encoded the first message of the next is on its way.

#include "codec/fours.h"
#include "cuda/decode.h"
#include "cuda/encode.h"
#include "cuda/tile.h"

namespace hvd {

/// A tile with what is to be encoded, and the same place in a message.
template <typename Element>
HVD_HOST_DEVICE Tile
tile_in(const DeviceKernels::Source& source, const Tile& tile, int64_t index) {
  Tile found = tile;
  const int64_t begin = index * kTile;
  // Nothing is written through these.
  found.values =
      const_cast<uint8_t*>(source.values) + begin / 8 * Element::kBits;
  found.scales =
      const_cast<uint8_t*>(source.scales) + 2 * (begin >> tile.shift);
  return found;
}

/// What every value is added to without a change, be it 0 or -0.
template <typename Team>
HVD_HOST_DEVICE void clear(Team& team, Values<Team>& sums) {
  team.each([&](int lane) {
    HVD_UNROLL
    for (auto& row : sums) {
      row[lane] = {{-0.0F, -0.0F, -0.0F, -0.0F}};
    }
  });
}

/// Adds a message.
template <typename Element, typename Team>
HVD_HOST_DEVICE void add(
    Team& team,
    const Codes<Element, Team>& codes,
    int shift,
    Values<Team>& sums) {
  const auto scales = factors(team, codes);
  team.each([&](int lane) {
    HVD_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const Four four = Fours<Element>::decode(codes.rows[row][lane]);
      Four& sum = sums[row][lane];
      if constexpr (kIsCast<Element>) {
        sum = plus(sum, four);
      } else {
        const int block = Tile::place(lane, row) >> shift;
        const float scale = team.read(scales, block);
        HVD_UNROLL
        for (int i = 0; i < kFour; ++i) {
          sum.values[i] = plus_product(sum.values[i], four.values[i], scale);
        }
      }
    }
  });
}

/// The sum of messages of any kind at one place, read again.
template <typename Element>
HVD_HOST_DEVICE Four sum_at(
    const DeviceKernels::Source* sources,
    int size,
    const Tile& tile,
    int64_t index,
    int place) {
  Four sum =
      decode_at<Element>(tile_in<Element>(sources[0], tile, index), place);
  HVD_NO_UNROLL
  for (int i = 1; i < size; ++i) {
    sum = plus(
        sum,
        decode_at<Element>(tile_in<Element>(sources[i], tile, index), place));
  }
  return sum;
}

/// Whether whole tiles of all messages can be loaded at once; at their first.
template <typename Element>
HVD_HOST_DEVICE bool can_load_all(
    const DeviceKernels::Source* sources,
    int size,
    const Tile& tile) {
  bool can = true;
  HVD_NO_UNROLL
  for (int i = 0; i < size; ++i) {
    can &= has_aligned_codes<Element>(tile_in<Element>(sources[i], tile, 0));
  }
  return can;
}

/// The sums of a whole tile, whose first message is in `next`. While one
/// message is decoded the next is on its way, with the last what `load_after`
/// begins to load. False if they have to be found in another way; if a sum is
/// not finite they may have to, too.
template <typename Element, typename Team, typename LoadAfter>
HVD_HOST_DEVICE bool sum_usual(
    Team& team,
    const DeviceKernels::Source* sources,
    int size,
    const Tile& tile,
    int64_t index,
    Codes<Element, Team>& next,
    LoadAfter load_after,
    Values<Team>& sums) {
  typename Team::template PerLane<bool> unusual;
  team.each([&](int lane) { unusual[lane] = false; });
  clear(team, sums);
  HVD_NO_UNROLL
  for (int i = 0; i < size; ++i) {
    const Codes<Element, Team> codes = next;
    if (i + 1 < size) {
      load_aligned_tile(
          team, tile_in<Element>(sources[i + 1], tile, index), next);
    } else {
      load_after();
    }
    team.each([&](int lane) {
      unusual[lane] |= has_unusual_scale(codes, lane);
      if constexpr (!Fours<Element>::kKeepsAll) {
        unusual[lane] |= !all_finite(codes, lane);
      }
    });
    add(team, codes, tile.shift, sums);
  }
  return !team.any(unusual);
}

/// The sum of `size` messages, plus its residual, to its codes: tiles `first`,
/// `first` + `stride` and so on.
template <typename Element, typename Team>
HVD_HOST_DEVICE void sum_tiles(
    Team& team,
    const DeviceKernels::Source* sources,
    int size,
    const DeviceKernels::Piece& sum,
    int shift,
    uint32_t first,
    uint32_t stride) {
  const auto tile_at = [&](uint32_t index) {
    return tile_of<Element::kBits>(sum, index, 0, shift);
  };
  const auto tiles = static_cast<uint32_t>(tiles_of(sum.count));
  const bool aligned = can_load_all<Element>(sources, size, tile_at(0));
  const auto can_load = [&](uint32_t index) {
    return index < tiles && aligned && tile_at(index).is_whole();
  };
  Codes<Element, Team> next;
  const auto load_first = [&](uint32_t index) {
    if (can_load(index)) {
      load_aligned_tile(
          team, tile_in<Element>(sources[0], tile_at(index), index), next);
    }
  };
  load_first(first);
  for (uint32_t index = first; index < tiles; index += stride) {
    const Tile tile = tile_at(index);
    const auto sum_again = [&](int lane, int row) {
      const int place = Tile::place(lane, row);
      const Four four = sum_at<Element>(sources, size, tile, index, place);
      return tile.residual == nullptr ? four
                                      : plus(four, residual_at(tile, place));
    };
    const auto load_after = [&] { load_first(index + stride); };
    Values<Team> sums;
    if (can_load(index) &&
        sum_usual<Element>(
            team, sources, size, tile, index, next, load_after, sums)) {
      add_residual(team, tile, sums);
      encode_values<Element>(team, tile, sums, sum_again);
    } else {
      encode_again<Element>(team, tile, sum_again);
    }
  }
}

} // namespace hvd
