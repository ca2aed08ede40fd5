#include "codec/unusual.h"

#include "codec/elements.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hvd {

namespace {

/// The code of value i, where a byte may hold two.
template <typename Element>
uint8_t get(const uint8_t* values, int64_t i) {
  if constexpr (Element::kBits == 8) {
    return values[i];
  } else {
    return (values[i / 2] >> (4 * (i % 2))) & 0xf;
  }
}

/// Codes are put from 0 up.
template <typename Element>
void put(uint8_t* values, int64_t i, uint8_t code) {
  if (Element::kBits == 8) {
    values[i] = code;
  } else if (i % 2 == 0) {
    values[i / 2] = code;
  } else {
    values[i / 2] = static_cast<uint8_t>(values[i / 2] | code << 4);
  }
}

float largest_finite(const float* in, int64_t count) {
  float amax = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(in[i]);
    amax = is_finite(magnitude) ? std::max(amax, magnitude) : amax;
  }
  return amax;
}

} // namespace

template <typename Element>
uint16_t encode_unusual(const float* in, int64_t count, uint8_t* values) {
  const auto scale = static_cast<uint16_t>(
      Scale::encode(bits_of(largest_finite(in, count)), Element::kMax));
  // Doubles hold the product of any float and any such power of two.
  const double middle =
      scale == 0 ? 0 : std::ldexp(1.0, -Scale::exponent(scale));
  const float reciprocal = over(1.0F, Scale::mantissa(scale));
  for (int64_t i = 0; i < count; ++i) {
    const auto moved = static_cast<float>(in[i] * middle);
    put<Element>(
        values,
        i,
        is_finite(in[i]) ? Element::encode(times(moved, reciprocal))
                         : Element::not_finite(in[i]));
  }
  return scale;
}

template <typename Element>
void decode_unusual(
    const uint8_t* values,
    uint16_t scale,
    int64_t count,
    float* out) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  const double back = scale == 0 ? 0 : std::ldexp(1.0, Scale::exponent(scale));
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t code = get<Element>(values, i);
    const float number = Element::decode(code);
    const double product = times(number, Scale::mantissa(scale)) * back;
    out[i] = Element::decodes_finite(code)
        ? static_cast<float>(std::clamp(product, -kLargest, kLargest))
        : number;
  }
}

template uint16_t encode_unusual<E4m3>(const float*, int64_t, uint8_t*);
template uint16_t encode_unusual<E5m2>(const float*, int64_t, uint8_t*);
template uint16_t encode_unusual<Int8>(const float*, int64_t, uint8_t*);
template uint16_t encode_unusual<Int4>(const float*, int64_t, uint8_t*);

template void decode_unusual<E4m3>(const uint8_t*, uint16_t, int64_t, float*);
template void decode_unusual<E5m2>(const uint8_t*, uint16_t, int64_t, float*);
template void decode_unusual<Int8>(const uint8_t*, uint16_t, int64_t, float*);
template void decode_unusual<Int4>(const uint8_t*, uint16_t, int64_t, float*);

} // namespace hvd
