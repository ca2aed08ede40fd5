#pragma once

// The arithmetic of one value, for host and CUDA device code alike. Everything
// here is exact or rounds to nearest even, and no expression is a product that
// is then added to, so no compiler can contract it into something else.

#include <bit>
#include <cstdint>

#if defined(__CUDACC__)
#define HVD_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define HVD_HOST_DEVICE inline __attribute__((always_inline))
#endif

namespace hvd {

HVD_HOST_DEVICE uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return std::bit_cast<uint32_t>(value);
#endif
}

HVD_HOST_DEVICE float float_of(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uint32_t kNanBits = 0x7fc00000;
constexpr uint32_t kMagnitudeBits = 0x7fffffff;

HVD_HOST_DEVICE bool is_finite(float value) {
  return (bits_of(value) & kMagnitudeBits) < kInfinityBits;
}

/// a * b, rounded to fp32 whatever is done with it next.
HVD_HOST_DEVICE float times(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

/// a + b, rounded to fp32 whatever a and b came from.
HVD_HOST_DEVICE float plus(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

/// a / b, rounded to fp32.
HVD_HOST_DEVICE float over(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

/// sum + a * b, of a product that is exact.
HVD_HOST_DEVICE float plus_product(float sum, float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, sum);
#else
  return plus(sum, times(a, b));
#endif
}

/// What stays behind of `value` when `decoded` arrives; nothing of a value that
/// did not arrive as a finite one, or the residual would spoil all later ones.
HVD_HOST_DEVICE float lost(float value, float decoded) {
  const float rest = plus(value, -decoded);
  return is_finite(rest) ? rest : 0.0F;
}

/// A float of fewer bits, as in c10/util/Float8_e4m3fn.h and Float8_e5m2.h.
///
/// `encode` rounds to nearest even and is defined for all values that round to
/// at most kMax, and for those that are not finite.
template <int kMantissaBits, int kBias>
struct SmallFloat {
  static constexpr int kMantissa = kMantissaBits;
  /// Bits that fp32 has and this format lacks.
  static constexpr int kDropped = 23 - kMantissa;
  static constexpr uint32_t kRebase = (127U - kBias) << 23;
  /// The smallest value with an implicit one, in fp32.
  static constexpr uint32_t kNormal = kRebase + (1U << 23);
  /// Its unit in the last place is the smallest value of this format: adding it
  /// leaves a denormal's code, rounded, in the lowest bits.
  static constexpr uint32_t kMagic = kNormal + (uint32_t{kDropped} << 23);

  /// Another way to round, without a branch: where P is the power of two at or
  /// below a magnitude, but at least kNormal, P * kRounder + magnitude has
  ///   in its upper 16 bits   sign and exponent, which is P's + kDropped
  ///   in its lower 16 bits   the rounded magnitude in units of the result's
  ///                          last place, less what makes the sum of this and
  ///                          exponent * 2^kMantissa the code
  /// The product is exact; that constant is even, which keeps ties as they are.
  static constexpr int kExcess = (127 - kBias + kDropped + 1) << kMantissa;
  static constexpr float kRounder = static_cast<float>(1 << kDropped) +
      static_cast<float>((1 << 16) - kExcess) / (1 << kMantissa);
  /// Of such a sum, lower half * kLowerWeight + upper half is the code shifted
  /// left by kCodeShift, less 2^15 if it is negative.
  static constexpr int kCodeShift = 7 - kMantissa;
  static constexpr int kLowerWeight = 1 << kCodeShift;

  /// The code of a magnitude below the format's overflow.
  static HVD_HOST_DEVICE uint32_t encode_magnitude(uint32_t bits) {
    const uint32_t denormal =
        bits_of(plus(float_of(bits), float_of(kMagic))) - kMagic;
    const uint32_t odd = (bits >> kDropped) & 1;
    const uint32_t half = (1U << (kDropped - 1)) - 1;
    const uint32_t normal = (bits - kRebase + half + odd) >> kDropped;
    return bits < kNormal ? denormal : normal;
  }

  /// The value of a finite code's lower seven bits.
  static HVD_HOST_DEVICE float decode_magnitude(uint32_t code) {
    const float normal = float_of((code << kDropped) + kRebase);
    // An implicit one stands where a denormal has none: take it off again.
    const float denormal = plus(
        float_of((code << kDropped) + kNormal), -float_of(uint32_t{kNormal}));
    return code < (1U << kMantissa) ? denormal : normal;
  }
};

/// 8 bits: sign, 4 of exponent, 3 of mantissa; no infinity, one NaN.
struct E4m3 {
  using Format = SmallFloat<3, 7>;
  static constexpr int kBits = 8;
  static constexpr float kMax = 448.0F;
  static constexpr uint8_t kNan = 0x7f;

  /// As torch's cast where the value is finite or NaN: above 464 it saturates.
  /// An infinity becomes NaN, where torch 2.13 gives +-448: whoever gets the
  /// result must see that it is not finite.
  static HVD_HOST_DEVICE uint8_t encode(float value) {
    const uint32_t magnitude = bits_of(value) & kMagnitudeBits;
    const uint32_t sign = (bits_of(value) >> 24) & 0x80;
    const uint32_t code =
        magnitude < (1087U << 20) ? Format::encode_magnitude(magnitude) : 0x7e;
    const uint32_t finite = code < 0x7e ? code : 0x7e;
    return static_cast<uint8_t>(
        (magnitude < kInfinityBits ? finite : kNan) | sign);
  }

  static HVD_HOST_DEVICE float decode(uint8_t code) {
    const uint32_t sign = (code & 0x80U) << 24;
    const uint32_t magnitude = code & 0x7fU;
    const uint32_t bits = magnitude == kNan
        ? kNanBits
        : bits_of(Format::decode_magnitude(magnitude));
    return float_of(bits | sign);
  }

  static HVD_HOST_DEVICE uint8_t not_finite(float) {
    return kNan;
  }
  static HVD_HOST_DEVICE bool decodes_finite(uint8_t code) {
    return (code & 0x7fU) != kNan;
  }
};

/// 8 bits: sign, 5 of exponent, 2 of mantissa; the upper half of an fp16.
struct E5m2 {
  using Format = SmallFloat<2, 15>;
  static constexpr int kBits = 8;
  static constexpr float kMax = 57344.0F;
  static constexpr uint8_t kInfinity = 0x7c;
  static constexpr uint8_t kNan = 0x7f;

  /// As torch's cast for every value: above 61440 comes infinity.
  static HVD_HOST_DEVICE uint8_t encode(float value) {
    const uint32_t magnitude = bits_of(value) & kMagnitudeBits;
    const uint32_t sign = (bits_of(value) >> 24) & 0x80;
    const uint32_t code = magnitude < (143U << 23)
        ? Format::encode_magnitude(magnitude)
        : kInfinity;
    return static_cast<uint8_t>(
        (magnitude <= kInfinityBits ? code : kNan) | sign);
  }

  static HVD_HOST_DEVICE float decode(uint8_t code) {
    const uint32_t sign = (code & 0x80U) << 24;
    const uint32_t magnitude = code & 0x7fU;
    const uint32_t finite = bits_of(Format::decode_magnitude(magnitude));
    const uint32_t special = magnitude == kInfinity ? kInfinityBits : kNanBits;
    return float_of((magnitude < kInfinity ? finite : special) | sign);
  }

  /// NaNs lose their sign: which one a sum of two has is up to the compiler.
  static HVD_HOST_DEVICE uint8_t not_finite(float value) {
    const bool infinite = (bits_of(value) & kMagnitudeBits) == kInfinityBits;
    return infinite ? encode(value) : kNan;
  }
  static HVD_HOST_DEVICE bool decodes_finite(uint8_t code) {
    return (code & 0x7fU) < kInfinity;
  }
};

/// The integer nearest to a value of less than 2^22, even where two are.
HVD_HOST_DEVICE int32_t nearest(float value) {
  constexpr float kMagic = 12582912.0F; // 1.5 * 2^23, whose unit is 1
  return static_cast<int32_t>(bits_of(plus(value, kMagic))) -
      static_cast<int32_t>(0x4b400000);
}

/// -127 to 127; -128 is "not finite". `encode` is defined up to +-127.5.
struct Int8 {
  static constexpr int kBits = 8;
  static constexpr float kMax = 127.0F;
  static constexpr uint8_t kNan = 0x80;

  static HVD_HOST_DEVICE uint8_t encode(float value) {
    return static_cast<uint8_t>(nearest(value));
  }
  static HVD_HOST_DEVICE float decode(uint8_t code) {
    const auto number = static_cast<float>(static_cast<int8_t>(code));
    return code == kNan ? float_of(kNanBits) : number;
  }
  static HVD_HOST_DEVICE uint8_t not_finite(float) {
    return kNan;
  }
  static HVD_HOST_DEVICE bool decodes_finite(uint8_t code) {
    return code != kNan;
  }
};

/// -7 to 7 in the lower half of a byte; -8 is "not finite".
struct Int4 {
  static constexpr int kBits = 4;
  static constexpr float kMax = 7.0F;
  static constexpr uint8_t kNan = 0x8;

  static HVD_HOST_DEVICE uint8_t encode(float value) {
    return static_cast<uint8_t>(nearest(value) & 0xf);
  }
  static HVD_HOST_DEVICE float decode(uint8_t code) {
    const int32_t number = static_cast<int32_t>(code ^ 0x8U) - 8;
    return code == kNan ? float_of(kNanBits) : static_cast<float>(number);
  }
  static HVD_HOST_DEVICE uint8_t not_finite(float) {
    return kNan;
  }
  static HVD_HOST_DEVICE bool decodes_finite(uint8_t code) {
    return code != kNan;
  }
};

/// fp32 -> fp16, as torch's cast; every NaN becomes the same one.
HVD_HOST_DEVICE uint16_t encode_half(float value) {
#if defined(__CUDA_ARCH__)
  uint16_t code;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
  return value == value ? code : 0x7e00;
#else
  using Half = SmallFloat<10, 15>;
  const uint32_t magnitude = bits_of(value) & kMagnitudeBits;
  const uint32_t sign = (bits_of(value) >> 16) & 0x8000;
  const uint32_t finite =
      magnitude < (143U << 23) ? Half::encode_magnitude(magnitude) : 0x7c00;
  return static_cast<uint16_t>(
      magnitude <= kInfinityBits ? finite | sign : 0x7e00);
#endif
}

/// fp16 that is no NaN -> fp32.
HVD_HOST_DEVICE float decode_half_number(uint16_t code) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
  return value;
#else
  using Half = SmallFloat<10, 15>;
  const uint32_t sign = (code & 0x8000U) << 16;
  const uint32_t magnitude = code & 0x7fffU;
  const uint32_t finite = bits_of(Half::decode_magnitude(magnitude));
  return float_of((magnitude < 0x7c00 ? finite : kInfinityBits) | sign);
#endif
}

HVD_HOST_DEVICE float decode_half(uint16_t code) {
  // A NaN keeps its payload and becomes quiet, as the processors' instructions
  // have it.
  const uint32_t sign = (code & 0x8000U) << 16;
  const uint32_t magnitude = code & 0x7fffU;
  const uint32_t nan = 0x7fc00000 | (magnitude & 0x3ff) << 13 | sign;
  return magnitude > 0x7c00 ? float_of(nan) : decode_half_number(code);
}

/// fp32 -> bf16, as torch's cast: every NaN becomes the same one.
HVD_HOST_DEVICE uint16_t encode_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>(
      (bits & kMagnitudeBits) <= kInfinityBits ? rounded : 0x7fc0);
}

HVD_HOST_DEVICE float decode_bfloat16(uint16_t code) {
  return float_of(uint32_t{code} << 16);
}

/// The scale of a block: what its integers or small floats are multiplied by.
///
/// 16 bits without a sign, 9 of exponent and 7 of mantissa, so a scale reaches
/// from below the smallest denormal by any format's kMax to above FLT_MAX, and
/// a scale times a value of 8 bits is exact in fp32. 0 stands for 0. In the
/// middle of the range a scale is the upper half of an fp32, moved.
struct Scale {
  static constexpr int kBias = 127 + 64;
  static constexpr uint32_t kOffset = 64U << 7;

  /// Scales from 2^-100 up to 2^100 need no care: no product of a value and a
  /// scale, or its reciprocal, leaves fp32's normal range.
  static constexpr uint32_t kUsualFrom = (kBias - 100U) << 7;
  static constexpr uint32_t kUsualBelow = (kBias + 100U) << 7;

  static HVD_HOST_DEVICE bool is_usual(uint32_t code) {
    return code - kUsualFrom < kUsualBelow - kUsualFrom;
  }

  /// Of a block whose largest magnitude has the bits `amax`, finite, in a
  /// format that ends at `max`: their quotient, rounded up.
  static HVD_HOST_DEVICE uint32_t encode(uint32_t amax, float max) {
    const uint32_t tiny = amax < (47U << 23) ? 100 : 0; // below 2^-80
    const float lift = float_of((127 + tiny) << 23);
    const float quotient = over(times(float_of(amax), lift), max);
    const uint32_t rounded_up = (bits_of(quotient) + 0xffff) >> 16;
    const uint32_t code = rounded_up + kOffset - (tiny << 7);
    return code & any(amax);
  }

  /// All bits but for 0; a mask, where a branch would end vectorisation.
  static HVD_HOST_DEVICE uint32_t any(uint32_t amax) {
    return 0U - static_cast<uint32_t>(amax != 0);
  }

  static HVD_HOST_DEVICE float decode_usual(uint32_t code) {
    return float_of((code - kOffset) << 16);
  }

  /// Any scale but 0 is mantissa(code), from 1 up to 2, times 2^exponent(code).
  static HVD_HOST_DEVICE float mantissa(uint32_t code) {
    return float_of(0x3f800000 | (code & 0x7fU) << 16);
  }
  static HVD_HOST_DEVICE int exponent(uint32_t code) {
    return static_cast<int>(code >> 7) - kBias;
  }
};

} // namespace hvd
