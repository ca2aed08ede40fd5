#include "codec/unusual.h"

#include <algorithm>
#include <cmath>

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
  for (int64_t i = 0; i < count; ++i) {
    put<Element>(values, i, encode_unusual<Element>(in[i], scale));
  }
  return scale;
}

template <typename Element>
void decode_unusual(
    const uint8_t* values,
    uint16_t scale,
    int64_t count,
    float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = decode_unusual<Element>(get<Element>(values, i), scale);
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
