#pragma once

#include "codec/elements.h"

#include <cstdint>
#include <random>
#include <vector>

namespace hvd {

/// Runs of values of every kind: any bits at all, zeros, all tiny, all huge,
/// ordinary ones, and these with a few special values among them.
inline std::vector<float> hard_values(int64_t count, std::mt19937& random) {
  constexpr uint32_t kSpecial[] = {
      0x7fc00000, // NaN
      0xffc00001, // -NaN
      0x7f800000, // infinity
      0xff800000, // -infinity
      0x80000000, // -0
      0x00000001, // the smallest denormal
      0x7f7fffff, // the largest
      0x7e967699, // 1e38
  };
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  uint32_t kind = 0;
  float unit = 1;
  for (int64_t i = 0; i < count; ++i) {
    if (i % 64 == 0) {
      kind = random() % 8;
      const uint32_t exponent = kind == 2 ? random() % 8
          : kind == 3                     ? 240
                                          : 64 + random() % 128;
      unit = float_of(exponent << 23);
    }
    values[i] = kind == 0 ? float_of(static_cast<uint32_t>(random()))
        : kind == 1       ? 0.0F
                          : normal(random) * unit;
    if (kind > 5 && random() % 40 == 0) {
      values[i] = float_of(kSpecial[random() % 8]);
    }
  }
  return values;
}

} // namespace hvd
