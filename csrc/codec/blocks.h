#pragma once

// The loops over blocks, written once. A source file for one instruction set
// defines HVD_TARGET, the attribute that lets a function use it, and a struct
// `Rows` of loops over a row of values, which are a multiple of 32:
//
//   largest(in, n)                     bits of the largest magnitude; at least
//                                      kInfinityBits if one is not finite
//   encode<Element>(in, r, n, out)     Element::encode(in * r)
//   all_finite<Element>(in, n)         whether all codes decode to finite
//   decode<Element, kAdd>(in, s, n, out)  Element::decode(in) * s, of finite
//                                      codes; added to `out` if kAdd
//   encode_cast<Cast>, decode_cast<Cast, kAdd>, multiply, keep_lost
//
// Products of a decoded value and a scale are exact, so whether an addition
// fuses with them makes no difference.

#include "codec/elements.h"
#include "codec/kernels.h"
#include "codec/unusual.h"

#include <algorithm>
#include <cstring>

namespace hvd {

namespace {

struct Half;
struct BFloat16;

template <typename Rows, typename Element>
HVD_TARGET void encode_blocks(
    const float* in,
    int64_t count,
    int64_t block,
    uint8_t* values,
    uint8_t* scales) {
  const int64_t block_bytes = block * Element::kBits / 8;
  for (int64_t begin = 0; begin < count; begin += block) {
    const uint32_t largest = Rows::largest(in, block);
    uint16_t scale = Scale::encode(float_of(largest), Element::kMax);
    if (largest < kInfinityBits && Scale::is_usual(scale)) {
      const float reciprocal = over(1.0F, Scale::decode(scale));
      Rows::template encode<Element>(in, reciprocal, block, values);
    } else if (largest == 0) {
      std::memset(values, 0, block_bytes);
    } else {
      scale = encode_unusual<Element>(in, block, values);
    }
    std::memcpy(scales, &scale, sizeof(scale));
    in += block;
    values += block_bytes;
    scales += sizeof(scale);
  }
}

/// Out of line: rare, and with a buffer of its own.
template <typename Element, bool kAdd>
__attribute__((noinline)) void decode_rarity(
    const uint8_t* values,
    uint16_t scale,
    int64_t block,
    float* out) {
  if constexpr (kAdd) {
    float decoded[1024];
    decode_unusual<Element>(values, scale, block, decoded);
    for (int64_t i = 0; i < block; ++i) {
      out[i] += decoded[i];
    }
  } else {
    decode_unusual<Element>(values, scale, block, out);
  }
}

template <typename Rows, typename Element, bool kAdd>
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
      Rows::template decode<Element, kAdd>(
          values, Scale::decode(scale), block, out);
    } else {
      decode_rarity<Element, kAdd>(values, scale, block, out);
    }
    out += block;
    values += block_bytes;
    scales += sizeof(scale);
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

template <typename Rows, typename Cast, bool kAdd>
HVD_TARGET void decode_casts(
    const uint8_t* values,
    const uint8_t*,
    int64_t count,
    int64_t,
    float* out) {
  Rows::template decode_cast<Cast, kAdd>(values, count, out);
}

template <typename Rows, typename Element>
constexpr Kernels::Format blocks_of() {
  return {
      encode_blocks<Rows, Element>,
      decode_blocks<Rows, Element, false>,
      decode_blocks<Rows, Element, true>};
}

template <typename Rows, typename Cast>
constexpr Kernels::Format casts_of() {
  return {
      encode_casts<Rows, Cast>,
      decode_casts<Rows, Cast, false>,
      decode_casts<Rows, Cast, true>};
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
      Rows::multiply,
      Rows::keep_lost};
}

} // namespace

} // namespace hvd
