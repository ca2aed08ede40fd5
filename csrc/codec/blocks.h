#pragma once

// The loops over blocks, written once. A source file for one instruction set
// defines HVD_TARGET, the attribute that lets a function use it, and a struct
// `Rows` of loops over a row of values. A row of kUnit is one of 32 or of 128
// values, other rows are a multiple of 32:
//
//   most<kUnit>(in)                    a Most: largest magnitudes, by lane
//   larger(most, most)                 by lane
//   largest(most, count, out)          of each Most, the bits of the largest;
//                                      at least kInfinityBits if a value was
//                                      not finite
//   encode<Element, kUnit>(in, r, out) Element::encode(in * r)
//   all_finite<Element>(in, n)         whether all codes decode to finite
//   decode<Element, kWrite>(in, s, n, out)
//                                      Element::decode(in) * s, of finite codes
//   encode_cast<Cast>(in, n, out), decode_cast<Cast, kWrite>(in, n, out)
//   fence()                            after a Write::Stream
//
// Products of a decoded value and a scale are exact, so whether an addition
// fuses with them makes no difference.

// The rest of the module is compiled with -O2. GCC then makes calls of
// functions like std::min here, where HVD_TARGET differs too.
#pragma GCC optimize("O3")

#include "codec/elements.h"
#include "codec/kernels.h"
#include "codec/unusual.h"

#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

namespace hvd {

namespace {

struct Half;
struct BFloat16;

template <typename Element>
constexpr bool kIsInteger =
    std::is_same_v<Element, Int8> || std::is_same_v<Element, Int4>;

/// How decoded values get to `out`: in place of what is there; past the caches,
/// if the address is a multiple of 64; added to what is there.
enum class Write { Set, Stream, Add };

/// Floats ahead that are fetched, which takes long from beyond the caches.
constexpr int64_t kAhead = 2048;

/// What is worked on at a time: it stays in the first-level cache.
constexpr int64_t kGroup = 2048;
constexpr int64_t kGroupUnits = kGroup / 32;

/// What a group's blocks are encoded with.
template <typename Rows>
struct Group {
  typename Rows::Most most[kGroupUnits];
  uint32_t largest[kGroupUnits]; ///< bits of the largest magnitude
  uint32_t scales[kGroupUnits];
  float reciprocals[kGroupUnits];
  bool usual = true; ///< all of them are usual, or of zeros
};

/// A block has 2^shift units.
template <typename Rows>
HVD_TARGET inline void find_largest(
    int64_t blocks,
    int shift,
    Group<Rows>& group) {
  for (int64_t b = 0; shift > 0 && b < blocks; ++b) {
    const auto* const units = group.most + (b << shift);
    auto most = units[0];
    for (int64_t i = 1; i < 1 << shift; ++i) {
      most = Rows::larger(most, units[i]);
    }
    group.most[b] = most;
  }
  Rows::largest(group.most, blocks, group.largest);
}

/// A loop of its own, to be vectorised. Of a multiple of 8, so that vectors are
/// full; what is beyond the blocks has no meaning.
template <typename Rows, typename Element>
HVD_TARGET inline void find_scales(int64_t blocks, Group<Rows>& group) {
  uint32_t unusual = 0;
  for (int64_t i = 0; i < ((blocks + 7) & ~7); ++i) {
    const uint32_t amax = group.largest[i];
    const uint32_t scale = Scale::encode(amax, Element::kMax);
    const float reciprocal = over(1.0F, Scale::decode_usual(scale));
    group.scales[i] = scale;
    group.reciprocals[i] = float_of(bits_of(reciprocal) & Scale::any(amax));
    unusual |=
        static_cast<uint32_t>(!Scale::is_usual(scale)) & Scale::any(amax);
    unusual |= static_cast<uint32_t>(amax >= kInfinityBits);
  }
  group.usual = unusual == 0;
}

/// The blocks of a group from `first` on, one by one, for some may not be
/// usual; changes the scales of those.
template <typename Rows, typename Element, int64_t kUnit>
HVD_TARGET void encode_from(
    int64_t first,
    const float* in,
    int64_t block,
    int64_t blocks,
    Group<Rows>& group,
    uint8_t* values) {
  for (int64_t b = first; b < blocks; ++b) {
    const float* const from = in + b * block;
    uint8_t* const to = values + b * block * Element::kBits / 8;
    const uint32_t largest = group.largest[b];
    if (largest == 0 ||
        (largest < kInfinityBits && Scale::is_usual(group.scales[b]))) {
      for (int64_t i = 0; i < block; i += kUnit) {
        Rows::template encode<Element, kUnit>(
            from + i, group.reciprocals[b], to + i * Element::kBits / 8);
      }
    } else {
      group.scales[b] = encode_unusual<Element>(from, block, to);
    }
  }
}

/// A group's largest magnitudes are looked for while the one before is encoded,
/// unit by unit: either leaves parts of the processor idle that the other can
/// use.
template <typename Rows, typename Element, int64_t kUnit>
HVD_TARGET void encode_units(
    const float* in,
    int64_t count,
    int64_t block,
    uint8_t* values,
    uint8_t* scales) {
  constexpr int64_t kUnitBytes = kUnit * Element::kBits / 8;
  const int shift = std::countr_zero(static_cast<uint64_t>(block / kUnit));
  Group<Rows> groups[2];
  Group<Rows>* here = &groups[0];
  Group<Rows>* coming = &groups[1];
  int64_t units = 0; // here; the first group comes after a void one
  for (int64_t left = count; left > 0 || units > 0;) {
    const int64_t units_coming = (left < kGroup ? left : kGroup) / kUnit;
    const float* const from = in + units * kUnit;
    const int64_t fewer = units < units_coming ? units : units_coming;
    const int64_t both = here->usual ? fewer : 0;
    for (int64_t i = 0; i < both; ++i) {
      coming->most[i] = Rows::template most<kUnit>(from + i * kUnit);
      Rows::template encode<Element, kUnit>(
          in + i * kUnit,
          here->reciprocals[i >> shift],
          values + i * kUnitBytes);
    }
    for (int64_t i = both; i < units_coming; ++i) {
      coming->most[i] = Rows::template most<kUnit>(from + i * kUnit);
    }
    const int64_t blocks = units >> shift;
    encode_from<Rows, Element, kUnit>(
        both >> shift, in, block, blocks, *here, values);
    for (int64_t b = 0; b < blocks; ++b) {
      const auto scale = static_cast<uint16_t>(here->scales[b]);
      std::memcpy(scales + 2 * b, &scale, sizeof(scale));
    }
    in += units * kUnit;
    values += units * kUnitBytes;
    scales += 2 * blocks;
    find_largest(units_coming >> shift, shift, *coming);
    find_scales<Rows, Element>(units_coming >> shift, *coming);
    std::swap(here, coming);
    units = units_coming;
    left -= units * kUnit;
  }
}

template <typename Rows, typename Element>
HVD_TARGET void encode_blocks(
    const float* in,
    int64_t count,
    int64_t block,
    uint8_t* values,
    uint8_t* scales) {
  if (block % 128 == 0) {
    encode_units<Rows, Element, 128>(in, count, block, values, scales);
  } else {
    encode_units<Rows, Element, 32>(in, count, block, values, scales);
  }
}

/// Out of line: rare, and with a buffer of its own.
template <typename Element, Write kWrite>
__attribute__((noinline)) void decode_rarity(
    const uint8_t* values,
    uint16_t scale,
    int64_t block,
    float* out) {
  if constexpr (kWrite == Write::Add) {
    float decoded[1024];
    decode_unusual<Element>(values, scale, block, decoded);
    for (int64_t i = 0; i < block; ++i) {
      out[i] += decoded[i];
    }
  } else {
    decode_unusual<Element>(values, scale, block, out);
  }
}

template <typename Rows, typename Element, Write kWrite>
HVD_TARGET void decode_blocks(
    const uint8_t* values,
    const uint8_t* scales,
    int64_t count,
    int64_t block,
    float* out) {
  const int64_t block_bytes = block * Element::kBits / 8;
  for (int64_t begin = 0; begin < count; begin += block) {
    uint16_t scale;
    std::memcpy(&scale, scales, sizeof(scale));
    if ((Scale::is_usual(scale) || scale == 0) &&
        Rows::template all_finite<Element>(values, block)) {
      Rows::template decode<Element, kWrite>(
          values, scale == 0 ? 0 : Scale::decode_usual(scale), block, out);
    } else {
      decode_rarity<Element, kWrite>(values, scale, block, out);
    }
    out += block;
    values += block_bytes;
    scales += sizeof(scale);
  }
  if (kWrite == Write::Stream) {
    Rows::fence();
  }
}

template <typename Rows, typename Cast>
HVD_TARGET void encode_casts(
    const float* in,
    int64_t count,
    int64_t,
    uint8_t* values,
    uint8_t*) {
  Rows::template encode_cast<Cast>(in, count, values);
}

template <typename Rows, typename Cast, Write kWrite>
HVD_TARGET void decode_casts(
    const uint8_t* values,
    const uint8_t*,
    int64_t count,
    int64_t,
    float* out) {
  Rows::template decode_cast<Cast, kWrite>(values, count, out);
  if (kWrite == Write::Stream) {
    Rows::fence();
  }
}

template <typename Rows>
HVD_TARGET void multiply(
    const float* in,
    float factor,
    const float* residual,
    int64_t count,
    float* out) {
  if (residual == nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      out[i] = times(in[i], factor);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      out[i] = plus(times(in[i], factor), residual[i]);
    }
  }
}

template <typename Rows>
HVD_TARGET void keep_lost(
    const float* values,
    const float* decoded,
    int64_t count,
    float* residual) {
  for (int64_t i = 0; i < count; ++i) {
    residual[i] = lost(values[i], decoded[i]);
  }
}

/// Of numbers whose magnitude is those bits, and not finite from kInfinity on.
template <typename Bits, Bits kMagnitude, Bits kInfinity>
HVD_TARGET inline bool all_below(const void* numbers, int64_t count) {
  const auto* const bits = static_cast<const Bits*>(numbers);
  Bits largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Bits magnitude = bits[i] & kMagnitude;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest < kInfinity;
}

template <typename Rows>
HVD_TARGET bool all_finite(const void* numbers, Number number, int64_t count) {
  switch (number) {
    case Number::Float16:
      return all_below<uint16_t, 0x7fff, 0x7c00>(numbers, count);
    case Number::BFloat16:
      return all_below<uint16_t, 0x7fff, 0x7f80>(numbers, count);
    default:
      return all_below<uint32_t, kMagnitudeBits, kInfinityBits>(numbers, count);
  }
}

template <typename Rows, typename Element>
constexpr Kernels::Format blocks_of() {
  return {
      encode_blocks<Rows, Element>,
      decode_blocks<Rows, Element, Write::Set>,
      decode_blocks<Rows, Element, Write::Stream>,
      decode_blocks<Rows, Element, Write::Add>};
}

template <typename Rows, typename Cast>
constexpr Kernels::Format casts_of() {
  return {
      encode_casts<Rows, Cast>,
      decode_casts<Rows, Cast, Write::Set>,
      decode_casts<Rows, Cast, Write::Stream>,
      decode_casts<Rows, Cast, Write::Add>};
}

template <typename Rows>
constexpr Kernels make_kernels(const char* name) {
  return {
      name,
      {casts_of<Rows, Half>(),
       casts_of<Rows, BFloat16>(),
       blocks_of<Rows, E4m3>(),
       blocks_of<Rows, E5m2>(),
       blocks_of<Rows, Int8>(),
       blocks_of<Rows, Int4>()},
      multiply<Rows>,
      keep_lost<Rows>,
      all_finite<Rows>};
}

} // namespace

} // namespace hvd
