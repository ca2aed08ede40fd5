#pragma once

// The loops over blocks, written once. A source file for one instruction set
// defines HVD_TARGET, the attribute that lets a function use it, and a struct
// `Rows` of loops over a row of values, which are a multiple of 32:
//
//   largest<Element>(in, block, blocks, out)
//                                      bits of each block's largest magnitude;
//                                      at least kInfinityBits if one is not
//                                      finite, but for a NaN that encode() sees
//   encode<Element>(in, r, n, out)     Element::encode(in * r)
//   all_finite<Element>(in, n)         whether all codes decode to finite
//   decode<Element, kWrite>(in, s, n, out)
//                                      Element::decode(in) * s, of finite codes
//   encode_cast<Cast>(in, n, out), decode_cast<Cast, kWrite>(in, n, out)
//   fence()                            after a Write::Stream
//
// Products of a decoded value and a scale are exact, so whether an addition
// fuses with them makes no difference.

#include "codec/elements.h"
#include "codec/kernels.h"
#include "codec/unusual.h"

#include <algorithm>
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
constexpr int64_t kGroupBlocks = kGroup / 32;

/// What a group's blocks are encoded with.
struct Group {
  uint32_t largest[kGroupBlocks]; ///< bits of the largest magnitude
  uint32_t scales[kGroupBlocks];
  float reciprocals[kGroupBlocks];
  bool usual; ///< all of them are usual, or of zeros
};

/// A loop of its own, to be vectorised.
template <typename Element>
HVD_TARGET inline void find_scales(int64_t blocks, Group& group) {
  uint32_t unusual = 0;
  for (int64_t i = 0; i < blocks; ++i) {
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

template <typename Rows, typename Element>
HVD_TARGET inline void find_group(
    const float* in,
    int64_t block,
    int64_t blocks,
    Group& group) {
  Rows::template largest<Element>(in, block, blocks, group.largest);
  // A multiple of 8, so that vectors are full; what is beyond has no meaning.
  find_scales<Element>((blocks + 7) & ~7, group);
}

template <typename Rows, typename Element>
HVD_TARGET inline void encode_group(
    const float* in,
    int64_t block,
    int64_t blocks,
    const Group& group,
    uint8_t* values,
    uint8_t* scales) {
  const int64_t block_bytes = block * Element::kBits / 8;
  for (int64_t i = 0; i < blocks; ++i) {
    auto scale = static_cast<uint16_t>(group.scales[i]);
    const uint32_t largest = group.largest[i];
    if (group.usual || largest == 0 ||
        (largest < kInfinityBits && Scale::is_usual(scale))) {
      Rows::template encode<Element>(in, group.reciprocals[i], block, values);
    } else {
      scale = encode_unusual<Element>(in, block, values);
    }
    std::memcpy(scales + 2 * i, &scale, sizeof(scale));
    in += block;
    values += block_bytes;
  }
}

/// The scales of a group are found while the one before is encoded: they take
/// little work but long chains of it.
template <typename Rows, typename Element>
HVD_TARGET void encode_blocks(
    const float* in,
    int64_t count,
    int64_t block,
    uint8_t* values,
    uint8_t* scales) {
  const int shift = std::countr_zero(static_cast<uint64_t>(block));
  const auto blocks_from = [&](int64_t begin) {
    return std::min(kGroup, count - begin) >> shift;
  };
  Group groups[2];
  Group* current = &groups[0];
  Group* next = &groups[1];
  find_group<Rows, Element>(in, block, blocks_from(0), *current);
  for (int64_t begin = 0; begin < count; begin += kGroup) {
    if (begin + kGroup < count) {
      find_group<Rows, Element>(
          in + begin + kGroup, block, blocks_from(begin + kGroup), *next);
    }
    encode_group<Rows, Element>(
        in + begin,
        block,
        blocks_from(begin),
        *current,
        values + begin * Element::kBits / 8,
        scales + 2 * (begin >> shift));
    std::swap(current, next);
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
      keep_lost<Rows>};
}

} // namespace

} // namespace hvd
