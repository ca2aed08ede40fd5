#pragma once

// Codes to numbers, a tile at a time.

#include "codec/fours.h"
#include "cuda/encode.h"
#include "cuda/memory.h"
#include "cuda/tile.h"

namespace hvd {

/// The codes of a tile, and by lane the scale of the block of that number.
template <typename Element, typename Team>
struct Codes {
  typename Team::template PerLane<typename Fours<Element>::Codes> rows[kRows];
  typename Team::template PerLane<uint32_t> scales;
};

/// Whether all codes of the tile, if it is whole, can be loaded at once.
template <typename Element>
HVD_HOST_DEVICE bool has_aligned_codes(const Tile& tile) {
  return is_aligned(tile.values, sizeof(typename Fours<Element>::Codes)) &&
      (kIsCast<Element> || is_aligned(tile.scales, 2));
}

/// The codes of such a tile.
template <typename Element, typename Team>
HVD_HOST_DEVICE void load_aligned_tile(
    Team& team,
    const Tile& tile,
    Codes<Element, Team>& codes) {
  using Word = typename Fours<Element>::Codes;
  team.each([&](int lane) {
    const auto* const words =
        global(reinterpret_cast<const Word*>(tile.values));
    HVD_UNROLL
    for (int row = 0; row < kRows; ++row) {
      codes.rows[row][lane] = words[row * kLanes + lane];
    }
    if constexpr (!kIsCast<Element>) {
      codes.scales[lane] = lane < tile.blocks()
          ? global(reinterpret_cast<const uint16_t*>(tile.scales))[lane]
          : 0;
    }
  });
}

template <typename Element, typename Team>
HVD_HOST_DEVICE void load_tile(
    Team& team,
    const Tile& tile,
    Codes<Element, Team>& codes) {
  if (tile.is_whole() && has_aligned_codes<Element>(tile)) {
    load_aligned_tile(team, tile, codes);
    return;
  }
  team.each([&](int lane) {
    HVD_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const int place = Tile::place(lane, row);
      codes.rows[row][lane] =
          load_codes<Element>(tile.values, place, tile.values_at(place));
    }
    if constexpr (!kIsCast<Element>) {
      codes.scales[lane] =
          lane < tile.blocks() ? load_scale(tile.scales, lane) : 0;
    }
  });
}

/// Whether a lane holds a scale that the fast way is not for.
template <typename Element, typename Team>
HVD_HOST_DEVICE bool has_unusual_scale(
    const Codes<Element, Team>& codes,
    int lane) {
  const uint32_t scale = kIsCast<Element> ? 0 : codes.scales[lane];
  return scale != 0 && !Scale::is_usual(scale);
}

/// Whether all codes that a lane holds are of finite values.
template <typename Element, typename Team>
HVD_HOST_DEVICE bool all_finite(const Codes<Element, Team>& codes, int lane) {
  bool finite = true;
  if constexpr (!kIsCast<Element>) {
    HVD_UNROLL
    for (const auto& row : codes.rows) {
      finite &= Fours<Element>::all_finite(row[lane]);
    }
  }
  return finite;
}

/// By lane, what Fours::decode is multiplied with in the block of that number.
template <typename Element, typename Team>
HVD_HOST_DEVICE typename Team::template PerLane<float> factors(
    Team& team,
    const Codes<Element, Team>& codes) {
  typename Team::template PerLane<float> found;
  team.each([&](int lane) {
    if constexpr (kIsCast<Element>) {
      found[lane] = 1;
    } else {
      const uint32_t scale = codes.scales[lane];
      found[lane] =
          scale == 0 ? 0 : Scale::decode_usual(scale) * Fours<Element>::kLift;
    }
  });
  return found;
}

/// Four values of a tile of any kind, from memory.
template <typename Element>
HVD_HOST_DEVICE Four decode_at(const Tile& tile, int place) {
  const int n = tile.values_at(place);
  const auto codes = load_codes<Element>(tile.values, place, n);
  if constexpr (kIsCast<Element>) {
    return Fours<Element>::decode(codes);
  } else {
    const int block = tile.block_at(place);
    return decode_any<Element>(
        codes, n > 0 ? load_scale(tile.scales, block) : 0);
  }
}

/// Tile of a piece to its numbers. `meanwhile()`: what can be done while the
/// codes are on their way.
template <typename Element, typename Team, typename Meanwhile>
HVD_HOST_DEVICE void decode_tile(
    Team& team,
    const Tile& tile,
    Number number,
    Meanwhile meanwhile) {
  Codes<Element, Team> codes;
  load_tile(team, tile, codes);
  meanwhile();
  typename Team::template PerLane<bool> unusual;
  team.each([&](int lane) {
    unusual[lane] = has_unusual_scale(codes, lane) || !all_finite(codes, lane);
  });
  if (team.any(unusual)) {
    team.each([&](int lane) {
      HVD_NO_UNROLL
      for (int row = 0; row < kRows; ++row) {
        const int place = Tile::place(lane, row);
        const Four four = decode_at<Element>(tile, place);
        store(number, four, tile.numbers, place, tile.values_at(place));
      }
    });
    return;
  }
  const auto scales = factors(team, codes);
  team.each([&](int lane) {
    HVD_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const int place = Tile::place(lane, row);
      Four four = Fours<Element>::decode(codes.rows[row][lane]);
      if constexpr (!kIsCast<Element>) {
        four = times(four, team.read(scales, tile.block_at(place)));
      }
      store(number, four, tile.numbers, place, tile.values_at(place));
    }
  });
}

} // namespace hvd
