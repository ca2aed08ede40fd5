#pragma once

// Blocks that the fast loops leave alone: some values are not finite, or all
// are so small or so large that the scale is not usual. A power of two brings
// these to the middle of the range, exactly, and back. `Element` is one of
// E4m3, E5m2, Int8 and Int4.

#include "codec/elements.h"

#include <cstdint>

namespace hvd {

/// 2^exponent, from -1022 to 1023.
HVD_HOST_DEVICE double power_of_two(int exponent) {
  const auto bits = static_cast<uint64_t>(1023 + exponent) << 52;
#if defined(__CUDA_ARCH__)
  return __longlong_as_double(static_cast<long long>(bits));
#else
  return std::bit_cast<double>(bits);
#endif
}

/// The code of one value of a block that has this scale.
template <typename Element>
HVD_HOST_DEVICE uint8_t encode_unusual(float value, uint32_t scale) {
  // Doubles hold the product of any float and any such power of two.
  const double middle = scale == 0 ? 0 : power_of_two(-Scale::exponent(scale));
  const float reciprocal = over(1.0F, Scale::mantissa(scale));
  const auto moved = static_cast<float>(value * middle);
  return is_finite(value) ? Element::encode(times(moved, reciprocal))
                          : Element::not_finite(value);
}

/// The value of any code under any scale. What is beyond fp32's largest, which
/// rounding can make of a smaller one, becomes that.
template <typename Element>
HVD_HOST_DEVICE float decode_unusual(uint8_t code, uint32_t scale) {
  constexpr double kLargest = 0x1.fffffep127;
  const double back = scale == 0 ? 0 : power_of_two(Scale::exponent(scale));
  const float number = Element::decode(code);
  const double product = times(number, Scale::mantissa(scale)) * back;
  const double above = product < -kLargest ? -kLargest : product;
  return Element::decodes_finite(code)
      ? static_cast<float>(above > kLargest ? kLargest : above)
      : number;
}

/// Encodes `count` values, one block; returns the scale.
template <typename Element>
uint16_t encode_unusual(const float* in, int64_t count, uint8_t* values);

/// Any block, with any bits.
template <typename Element>
void decode_unusual(
    const uint8_t* values,
    uint16_t scale,
    int64_t count,
    float* out);

} // namespace hvd
