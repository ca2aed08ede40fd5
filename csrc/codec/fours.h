#pragma once

// Four values at a time, and their codes in one register. The same codes as
// Element's, with fewer instructions: what host vectors gain by width, a lane
// of a device gains here. tests/codec/exhaustive.cpp compares them.

#include "codec/elements.h"

#include <cstdint>
#include <type_traits>

namespace hvd {

struct Four {
  float values[4];
};

/// Bytes of a and b, by the four lowest hexadecimal digits of `selector` from
/// the lowest byte up: 0 to 3 of a, 4 to 7 of b; 8 more: that byte's sign bit,
/// eight times.
HVD_HOST_DEVICE uint32_t
select_bytes(uint32_t a, uint32_t b, uint32_t selector) {
#if defined(__CUDA_ARCH__)
  uint32_t selected;
  asm("prmt.b32 %0, %1, %2, %3;"
      : "=r"(selected)
      : "r"(a), "r"(b), "r"(selector));
  return selected;
#else
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t selected = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t digit = selector >> (4 * i);
    const auto byte = static_cast<uint8_t>(both >> (8 * (digit & 7)));
    const auto signs = static_cast<uint8_t>(byte >= 0x80 ? 0xff : 0);
    selected |= uint32_t{(digit & 8) != 0 ? signs : byte} << (8 * i);
  }
  return selected;
#endif
}

/// One byte of each of four words, which is number `byte` of it.
HVD_HOST_DEVICE uint32_t gather_bytes(const uint32_t (&words)[4], int byte) {
  const uint32_t selector = 0x0040U + 0x11U * static_cast<uint32_t>(byte);
  const uint32_t low = select_bytes(words[0], words[1], selector);
  const uint32_t high = select_bytes(words[2], words[3], selector);
  return select_bytes(low, high, 0x5410);
}

// From sm_89 on there are instructions for 8-bit floats.
#if defined(__CUDA_ARCH__)
#define HVD_KNOWS_FP8 (__CUDA_ARCH__ >= 890)
#else
#define HVD_KNOWS_FP8 0
#endif

/// Codes are in `Codes`, in the order of their values from the lowest bits up.
///
///   encode      of finite values up to the format's largest
///   all_finite  whether all codes decode to finite values
///   decode      of finite codes, divided by kLift
///   kKeepsAll   whether decode makes of all other codes what is not finite
template <typename Element>
struct Fours;

/// What 8-bit floats have in common.
template <typename Element>
struct SmallFloatFours {
  using Codes = uint32_t;
  using Format = typename Element::Format;

#if HVD_KNOWS_FP8
  static HVD_HOST_DEVICE uint32_t encode(const Four& four) {
    const auto pair = [](float low, float high) {
      uint16_t codes;
      if constexpr (std::is_same_v<Element, E4m3>) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
            : "=h"(codes)
            : "f"(high), "f"(low));
      } else {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;"
            : "=h"(codes)
            : "f"(high), "f"(low));
      }
      return uint32_t{codes};
    };
    return pair(four.values[0], four.values[1]) |
        pair(four.values[2], four.values[3]) << 16;
  }
#else
  /// As SmallFloat::kRounder has it.
  static HVD_HOST_DEVICE uint32_t encode(const Four& four) {
    // A code's lowest bit goes to the lowest of the second byte.
    constexpr int kShift = 8 - Format::kCodeShift;
    uint32_t rounded[4];
    uint32_t signs[4];
    for (int i = 0; i < 4; ++i) {
      signs[i] = bits_of(four.values[i]);
      const uint32_t magnitude = signs[i] & kMagnitudeBits;
      const uint32_t normal =
          magnitude > Format::kNormal ? magnitude : Format::kNormal;
      const uint32_t sum = bits_of(plus_product(
          float_of(magnitude),
          float_of(normal & kInfinityBits),
          Format::kRounder));
      rounded[i] =
          (sum * Format::kLowerWeight << kShift) + (sum >> 16 << kShift);
    }
    return (gather_bytes(rounded, 1) & 0x7f7f7f7f) |
        (gather_bytes(signs, 3) & 0x80808080);
  }
#endif

  static HVD_HOST_DEVICE bool all_finite(uint32_t codes) {
    constexpr uint32_t kFirst =
        std::is_same_v<Element, E4m3> ? E4m3::kNan : E5m2::kInfinity;
    constexpr uint32_t kBeyond = (0x80 - kFirst) * 0x01010101U;
    return (((codes & 0x7f7f7f7f) + kBeyond) & 0x80808080) == 0;
  }

  /// Of codes in the place of fp16, in two words.
  static HVD_HOST_DEVICE Four from_halves(uint32_t low, uint32_t high) {
    const auto number = [](uint32_t half) {
      return decode_half_number(static_cast<uint16_t>(half));
    };
    return {{number(low), number(low >> 16), number(high), number(high >> 16)}};
  }
};

template <>
struct Fours<E4m3> : SmallFloatFours<E4m3> {
#if HVD_KNOWS_FP8
  static constexpr float kLift = 1.0F;
  static constexpr bool kKeepsAll = true;

  static HVD_HOST_DEVICE Four decode(uint32_t codes) {
    const auto halves = [](uint32_t pair) {
      uint32_t both;
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;"
          : "=r"(both)
          : "h"(static_cast<uint16_t>(pair)));
      return both;
    };
    return from_halves(halves(codes), halves(codes >> 16));
  }
#else
  static constexpr float kLift = 256.0F;
  static constexpr bool kKeepsAll = false;

  static HVD_HOST_DEVICE Four decode(uint32_t codes) {
    // Sign and four bits of exponent to where fp16 has its sign and five.
    return from_halves(
        select_bytes(codes, 0, 0x9180) << 7 & 0xbf80bf80,
        select_bytes(codes, 0, 0xb3a2) << 7 & 0xbf80bf80);
  }
#endif
};

template <>
struct Fours<E5m2> : SmallFloatFours<E5m2> {
  static constexpr float kLift = 1.0F;
  static constexpr bool kKeepsAll = true;

  static HVD_HOST_DEVICE Four decode(uint32_t codes) {
    return from_halves(
        select_bytes(codes, 0, 0x1404), select_bytes(codes, 0, 0x3424));
  }
};

/// A float whose unit is 1 and whose lowest byte is 0.
constexpr float kUnits = 12582912.0F; // 1.5 * 2^23
constexpr uint32_t kUnitsBits = 0x4b400000;

template <>
struct Fours<Int8> {
  using Codes = uint32_t;
  static constexpr float kLift = 1.0F;
  static constexpr bool kKeepsAll = false;

  static HVD_HOST_DEVICE uint32_t encode(const Four& four) {
    uint32_t rounded[4];
    for (int i = 0; i < 4; ++i) {
      rounded[i] = bits_of(plus(four.values[i], kUnits));
    }
    return gather_bytes(rounded, 0);
  }

  static HVD_HOST_DEVICE bool all_finite(uint32_t codes) {
    const uint32_t x = codes ^ 0x80808080;
    return ((((x & 0x7f7f7f7f) + 0x7f7f7f7f) | x) & 0x80808080) == 0x80808080;
  }

  static HVD_HOST_DEVICE Four decode(uint32_t codes) {
    const uint32_t x = codes ^ 0x80808080; // from 0 up
    Four four;
    for (int i = 0; i < 4; ++i) {
      const uint32_t bits =
          select_bytes(x, kUnitsBits, 0x7650U + static_cast<uint32_t>(i));
      four.values[i] = plus(float_of(bits), -(kUnits + 128));
    }
    return four;
  }
};

template <>
struct Fours<Int4> {
  using Codes = uint16_t;
  static constexpr float kLift = 1.0F;
  static constexpr bool kKeepsAll = false;

  static HVD_HOST_DEVICE uint16_t encode(const Four& four) {
    const uint32_t bytes = Fours<Int8>::encode(four) & 0x0f0f0f0f;
    const uint32_t pairs = bytes | bytes >> 4;
    return static_cast<uint16_t>(select_bytes(pairs, 0, 0x4420));
  }

  static HVD_HOST_DEVICE bool all_finite(uint16_t codes) {
    const uint32_t x = codes ^ 0x8888U;
    return ((((x & 0x7777) + 0x7777) | x) & 0x8888) == 0x8888;
  }

  static HVD_HOST_DEVICE Four decode(uint16_t codes) {
    const uint32_t x = codes ^ 0x8888U;
    Four four;
    for (int i = 0; i < 4; ++i) {
      const uint32_t bits = kUnitsBits | (x >> (4 * i) & 0xf);
      four.values[i] = plus(float_of(bits), -(kUnits + 8));
    }
    return four;
  }
};

/// The casts have no scale and know infinity.
struct HalfCast {
  static constexpr int kBits = 16;
};
struct BFloat16Cast {
  static constexpr int kBits = 16;
};

template <typename Cast>
constexpr bool kIsCast =
    std::is_same_v<Cast, HalfCast> || std::is_same_v<Cast, BFloat16Cast>;

template <typename Cast>
struct CastFours {
  using Codes = uint64_t;
  static constexpr bool kKeepsAll = true;

  static HVD_HOST_DEVICE uint64_t encode(const Four& four) {
    uint32_t codes[4];
    for (int i = 0; i < 4; ++i) {
      codes[i] = std::is_same_v<Cast, HalfCast>
          ? encode_half(four.values[i])
          : encode_bfloat16(four.values[i]);
    }
    const uint32_t low = codes[0] | codes[1] << 16;
    const uint32_t high = codes[2] | codes[3] << 16;
    return uint64_t{high} << 32 | low;
  }

  static HVD_HOST_DEVICE Four decode(uint64_t codes) {
    Four four;
    for (int i = 0; i < 4; ++i) {
      const auto code = static_cast<uint16_t>(codes >> (16 * i));
      four.values[i] = std::is_same_v<Cast, HalfCast> ? decode_half(code)
                                                      : decode_bfloat16(code);
    }
    return four;
  }
};

template <>
struct Fours<HalfCast> : CastFours<HalfCast> {};
template <>
struct Fours<BFloat16Cast> : CastFours<BFloat16Cast> {};

} // namespace hvd
