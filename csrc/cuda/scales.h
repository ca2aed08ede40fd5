#pragma once

// The scales of a tile's blocks. The maxima of the rows come together in lanes;
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

/// Bits of the largest magnitude of four; of some NaN if there is one.
HVD_HOST_DEVICE uint32_t largest(const Four& four) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float most = fabsf(four.values[0]);
  HVD_UNROLL
  for (int i = 1; i < kFour; ++i) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(fabsf(four.values[i])));
  }
  return bits_of(most);
#else
  uint32_t most = 0;
  HVD_UNROLL
  for (float value : four.values) {
    most = larger(most, bits_of(value) & kMagnitudeBits);
  }
  return most;
#endif
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

/// Each lane's own and the one given to it by the lane that is so far `apart`.
template <typename Team>
HVD_HOST_DEVICE void join(
    Team& team,
    const typename Team::template PerLane<uint32_t>& given,
    int apart,
    typename Team::template PerLane<uint32_t>& maxima) {
  typename Team::template PerLane<uint32_t> others;
  team.each([&](int lane) { others[lane] = team.read(given, lane ^ apart); });
  team.each(
      [&](int lane) { maxima[lane] = larger(maxima[lane], others[lane]); });
}

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

/// The row whose maximum is the lane's in the end: its lowest three bits, the
/// lowest first. Its own inverse.
HVD_HOST_DEVICE int row_of(int lane) {
  return (lane & 1) << 2 | (lane & 2) | (lane & 4) >> 2;
}

/// By lane, the largest magnitude of the block of that number; 0 beyond.
///
/// Of eight rows each lane keeps half for itself and its neighbour, and gets
/// the neighbour's part of them; then a quarter, then one.
template <typename Team>
HVD_HOST_DEVICE typename Team::template PerLane<uint32_t> largest_of_blocks(
    Team& team,
    int shift,
    Maxima<Team>& maxima) {
  join_rows(team, shift, maxima);
  typename Team::template PerLane<uint32_t> given;
  HVD_UNROLL
  for (int apart = 1; apart < kRows; apart *= 2) {
    const int kept = kRows / 2 / apart;
    HVD_UNROLL
    for (int row = 0; row < kept; ++row) {
      auto& low = maxima[row];
      const auto& high = maxima[row + kept];
      team.each([&](int lane) {
        const bool upper = (lane & apart) != 0;
        given[lane] = upper ? low[lane] : high[lane];
        low[lane] = upper ? high[lane] : low[lane];
      });
      join(team, given, apart, low);
    }
  }
  auto& largest = maxima[0];
  HVD_UNROLL
  for (int apart = kRows; apart < kLanes; apart *= 2) {
    if ((kFour * apart) >> shift == 0) {
      join(team, largest, apart, largest);
    }
  }
  typename Team::template PerLane<uint32_t> found;
  team.each([&](int lane) {
    const int place = lane << shift;
    const int within = place % kRow / kFour;
    found[lane] =
        team.read(largest, row_of(place / kRow) | (within & ~(kRows - 1)));
    found[lane] = place < kTile ? found[lane] : 0;
  });
  return found;
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
