#pragma once

// Numbers to codes, a tile at a time. Memory is read once: the values wait in
// registers for the scales of their blocks. Only tiles with an unusual block
// (codec/unusual.h) are read again.

#include "codec/fours.h"
#include "codec/unusual.h"
#include "cuda/memory.h"
#include "cuda/scales.h"
#include "cuda/tile.h"
#include "cuda/values.h"

namespace hvd {

/// Code i of four.
template <typename Element>
HVD_HOST_DEVICE uint8_t code_at(typename Fours<Element>::Codes codes, int i) {
  constexpr uint32_t kMask = (1U << Element::kBits) - 1;
  return static_cast<uint8_t>((codes >> (Element::kBits * i)) & kMask);
}

/// Any four values of a block with any scale.
template <typename Element>
HVD_HOST_DEVICE typename Fours<Element>::Codes encode_any(
    const Four& four,
    uint32_t scale) {
  uint32_t codes = 0;
  for (int i = 0; i < kFour; ++i) {
    codes |= uint32_t{encode_unusual<Element>(four.values[i], scale)}
        << (Element::kBits * i);
  }
  return static_cast<typename Fours<Element>::Codes>(codes);
}

/// Any four codes of a block with any scale.
template <typename Element>
HVD_HOST_DEVICE Four
decode_any(typename Fours<Element>::Codes codes, uint32_t scale) {
  using All = Fours<Element>;
  if (Scale::is_usual(scale) && All::all_finite(codes)) {
    return times(All::decode(codes), Scale::decode_usual(scale) * All::kLift);
  }
  Four four;
  for (int i = 0; i < kFour; ++i) {
    four.values[i] = decode_unusual<Element>(code_at<Element>(codes, i), scale);
  }
  return four;
}

/// 16 bits, no scales.
template <typename Cast, typename Team>
HVD_HOST_DEVICE void encode_casts(
    Team& team,
    const Tile& tile,
    const Values<Team>& values) {
  team.each([&](int lane) {
    HVD_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const int place = Tile::place(lane, row);
      const Four& four = values[row][lane];
      const auto codes = Fours<Cast>::encode(four);
      store_codes<Cast>(codes, tile.values, place, tile.values_at(place));
      if (tile.residual != nullptr) {
        keep_lost(tile, place, four, Fours<Cast>::decode(codes));
      }
    }
  });
}

/// Writes lane i's scale to block i.
template <typename Team>
HVD_HOST_DEVICE void store_scales(
    Team& team,
    const Tile& tile,
    const Scales<Team>& scales) {
  team.meet(); // a scale that is read may lie where one is written
  team.each([&](int lane) {
    if (lane < tile.blocks()) {
      store_scale(scales.codes[lane], tile.scales, lane);
    }
  });
}

/// Blocks with usual scales.
template <typename Element, typename Team>
HVD_HOST_DEVICE void encode_usual(
    Team& team,
    const Tile& tile,
    const Scales<Team>& scales,
    const Values<Team>& values) {
  team.each([&](int lane) {
    HVD_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const int place = Tile::place(lane, row);
      const int n = tile.values_at(place);
      const int block = tile.block_at(place);
      const Four& four = values[row][lane];
      const float reciprocal = team.read(scales.reciprocals, block);
      const auto codes = Fours<Element>::encode(times(four, reciprocal));
      store_codes<Element>(codes, tile.values, place, n);
      if (tile.residual != nullptr) {
        const uint32_t scale = team.read(scales.codes, block);
        const float factor = scale == 0 ? 0 : Scale::decode_usual(scale);
        const Four decoded = times(
            Fours<Element>::decode(codes), factor * Fours<Element>::kLift);
        keep_lost(tile, place, four, decoded);
      }
    }
  });
}

/// A tile of any kind, row by row. `value(lane, row)` finds four values again.
template <typename Element, typename Team, typename Value>
HVD_HOST_DEVICE void encode_again(Team& team, const Tile& tile, Value value) {
  Scales<Team> scales;
  if constexpr (!kIsCast<Element>) {
    Maxima<Team> maxima;
    team.each([&](int lane) {
      HVD_NO_UNROLL
      for (int row = 0; row < kRows; ++row) {
        maxima[row][lane] = largest_finite(value(lane, row));
      }
    });
    scales = find_scales<Element>(team, tile.shift, maxima);
  }
  team.each([&](int lane) {
    HVD_NO_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const int place = Tile::place(lane, row);
      const Four four = value(lane, row);
      typename Fours<Element>::Codes codes;
      Four decoded;
      if constexpr (kIsCast<Element>) {
        codes = Fours<Element>::encode(four);
        decoded = Fours<Element>::decode(codes);
      } else {
        const uint32_t scale = team.read(scales.codes, tile.block_at(place));
        codes = encode_any<Element>(four, scale);
        decoded = decode_any<Element>(codes, scale);
      }
      store_codes<Element>(codes, tile.values, place, tile.values_at(place));
      if (tile.residual != nullptr) {
        keep_lost(tile, place, four, decoded);
      }
    }
  });
  if constexpr (!kIsCast<Element>) {
    store_scales(team, tile, scales);
  }
}

/// `values` as codes in the tile's place, and what they lose as its residual;
/// `value` as above.
template <typename Element, typename Team, typename Value>
HVD_HOST_DEVICE void encode_values(
    Team& team,
    const Tile& tile,
    const Values<Team>& values,
    Value value) {
  if constexpr (kIsCast<Element>) {
    encode_casts<Element>(team, tile, values);
  } else {
    Maxima<Team> maxima;
    team.each([&](int lane) {
      HVD_UNROLL
      for (int row = 0; row < kRows; ++row) {
        maxima[row][lane] = largest(values[row][lane]);
      }
    });
    const auto scales = find_scales<Element>(team, tile.shift, maxima);
    if (team.any(scales.unusual)) {
      encode_again<Element>(team, tile, value);
    } else {
      encode_usual<Element>(team, tile, scales, values);
      store_scales(team, tile, scales);
    }
  }
}

/// factor * the tile's numbers, plus its residual, encoded. `meanwhile()`: what
/// can be done while the numbers are on their way.
template <typename Element, typename Team, typename Meanwhile>
HVD_HOST_DEVICE void encode_tile(
    Team& team,
    const Tile& tile,
    Number number,
    float factor,
    Meanwhile meanwhile) {
  Values<Team> values;
  load_numbers(team, tile, number, values);
  meanwhile();
  team.each([&](int lane) {
    HVD_UNROLL
    for (int row = 0; row < kRows; ++row) {
      Four& four = values[row][lane];
      four = times(as_floats(number, four), factor);
    }
  });
  add_residual(team, tile, values);
  encode_values<Element>(team, tile, values, [&](int lane, int row) {
    const int place = Tile::place(lane, row);
    const Four four = load(number, tile.numbers, place, tile.values_at(place));
    const Four product = times(as_floats(number, four), factor);
    return tile.residual == nullptr ? product
                                    : plus(product, residual_at(tile, place));
  });
}

} // namespace hvd
