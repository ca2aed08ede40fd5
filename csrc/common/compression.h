#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hvd {

/// What an all_reduce turns its numbers into for the wire.
enum class Compression : uint8_t {
  None,
  Fp16,
  Bf16,
  Fp8, ///< e4m3fn
  Fp8E5M2,
  Int8,
  Int4,
};

/// "none", "fp16", "bf16", "fp8", "fp8_e5m2", "int8" or "int4".
const char* name(Compression compression);

/// The compression of that name, if there is one.
std::optional<Compression> compression_named(const std::string& name);

/// All names, for messages: "none, fp16, ... or int4".
std::string compression_names();

/// Whether it is a float of 16 bits, which needs no scales.
inline bool is_cast(Compression compression) {
  return compression == Compression::Fp16 || compression == Compression::Bf16;
}

/// A compression and its parameters; alike on all ranks. fp16 and bf16 are
/// casts; fp8, int8 and int4 have a scale for each block of values, whose
/// number is a power of two from 32 to 1024.
struct Codec {
  Compression compression = Compression::None;
  bool error_feedback = false; ///< what is lost is added the next time
  int32_t block = 1; ///< values; of no meaning where there is no scale

  bool operator==(const Codec&) const = default;
};

} // namespace hvd
