// For any processor; the compiler vectorises what it can.

#define HVD_TARGET
#include "codec/blocks.h"

namespace hvd {

namespace {

template <typename Cast>
uint16_t encode_as(float value) {
  if constexpr (std::is_same_v<Cast, Half>) {
    return encode_half(value);
  } else {
    return encode_bfloat16(value);
  }
}

template <typename Cast>
float decode_as(uint16_t code) {
  if constexpr (std::is_same_v<Cast, Half>) {
    return decode_half(code);
  } else {
    return decode_bfloat16(code);
  }
}

struct Rows {
  static void fence() {}

  using Most = int32_t;

  template <int64_t kUnit>
  static Most most(const float* in) {
    Most found = 0;
    for (int64_t i = 0; i < kUnit; ++i) {
      const auto bits = static_cast<Most>(bits_of(in[i]) & kMagnitudeBits);
      found = std::max(found, bits);
    }
    return found;
  }

  static Most larger(Most a, Most b) {
    return std::max(a, b);
  }

  static void largest(const Most* most, int64_t count, uint32_t* out) {
    std::copy(most, most + count, out);
  }

  template <typename Element, int64_t kUnit>
  static void encode(const float* in, float r, uint8_t* out) {
    if constexpr (Element::kBits == 8) {
      for (int64_t i = 0; i < kUnit; ++i) {
        out[i] = Element::encode(times(in[i], r));
      }
    } else {
      for (int64_t i = 0; i < kUnit / 2; ++i) {
        const uint8_t low = Element::encode(times(in[2 * i], r));
        const uint8_t high = Element::encode(times(in[2 * i + 1], r));
        out[i] = static_cast<uint8_t>(low | high << 4);
      }
    }
  }

  template <typename Element>
  static bool all_finite(const uint8_t* in, int64_t n) {
    int finite = 1;
    if constexpr (Element::kBits == 8) {
      for (int64_t i = 0; i < n; ++i) {
        finite &= Element::decodes_finite(in[i]);
      }
    } else {
      for (int64_t i = 0; i < n / 2; ++i) {
        finite &= Element::decodes_finite(in[i] & 0xf);
        finite &= Element::decodes_finite(in[i] >> 4);
      }
    }
    return finite != 0;
  }

  template <typename Element, Write kWrite>
  static void decode(const uint8_t* in, float s, int64_t n, float* out) {
    const auto place = [&](int64_t i, uint8_t code) {
      const float value = times(Element::decode(code), s);
      out[i] = kWrite == Write::Add ? plus(out[i], value) : value;
    };
    if constexpr (Element::kBits == 8) {
      for (int64_t i = 0; i < n; ++i) {
        place(i, in[i]);
      }
    } else {
      for (int64_t i = 0; i < n / 2; ++i) {
        place(2 * i, in[i] & 0xf);
        place(2 * i + 1, in[i] >> 4);
      }
    }
  }

  template <typename Cast>
  static void encode_cast(const float* in, int64_t n, uint8_t* out) {
    for (int64_t i = 0; i < n; ++i) {
      const uint16_t code = encode_as<Cast>(in[i]);
      std::memcpy(out + 2 * i, &code, sizeof(code));
    }
  }

  template <typename Cast, Write kWrite>
  static void decode_cast(const uint8_t* in, int64_t n, float* out) {
    for (int64_t i = 0; i < n; ++i) {
      uint16_t code;
      std::memcpy(&code, in + 2 * i, sizeof(code));
      const float value = decode_as<Cast>(code);
      out[i] = kWrite == Write::Add ? plus(out[i], value) : value;
    }
  }
};

} // namespace

const Kernels* plain_kernels() {
  static constexpr Kernels set = make_kernels<Rows>("plain");
  return &set;
}

} // namespace hvd
