#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hvd {

/// What gradients are turned into for the wire.
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

} // namespace hvd
