#pragma once

#include "codec/device.h"
#include "common/compression.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace hvd {

/// The loops of the codecs for one instruction set. All sets give the same
/// bits.
///
/// A format's `count` is a multiple of 32 and of the block. Pointers need not
/// be aligned; `values` and `scales` are those of Codec, and the casts have no
/// scales. Threads: pure functions.
struct Kernels {
  struct Format {
    using Decode = void (*)(
        const uint8_t* values,
        const uint8_t* scales,
        int64_t count,
        int64_t block,
        float* out);

    void (*encode)(
        const float* in,
        int64_t count,
        int64_t block,
        uint8_t* values,
        uint8_t* scales);
    Decode decode;
    /// The same, past the caches: for an `out` that is larger than they are and
    /// begins at a multiple of 64.
    Decode decode_stream;
    /// out += decoded
    Decode decode_add;
  };

  const char* name;
  std::array<Format, 6> formats; ///< in Compression's order, without None

  /// out = factor * in + residual, each operation rounded; without the residual
  /// where it is null. `out` may be `in`. Any `count`.
  void (*multiply)(
      const float* in,
      float factor,
      const float* residual,
      int64_t count,
      float* out);

  /// residual = lost(values, decoded). Any `count`.
  void (*keep_lost)(
      const float* values,
      const float* decoded,
      int64_t count,
      float* residual);

  /// Whether all numbers are finite. Any `count`.
  bool (*all_finite)(const void* numbers, Number number, int64_t count);

  const Format& operator[](Compression compression) const {
    return formats[static_cast<size_t>(compression) - 1];
  }
};

/// Null where the processor cannot.
const Kernels* plain_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

/// The widest that this processor has, or what was asked for.
const Kernels& kernels();

/// "plain", "avx2" and "avx512", as far as this processor can, widest last.
std::vector<std::string> simd_names();

/// For tests: from now on, in all threads, use those kernels. ValueError for
/// any other name than those.
void use_simd(const std::string& name);

} // namespace hvd
