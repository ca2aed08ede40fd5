#include "common/compression.h"

#include <array>
#include <cstddef>

namespace hvd {

namespace {

/// In the order of the enum.
constexpr std::array<const char*, 7> kNames =
    {"none", "fp16", "bf16", "fp8", "fp8_e5m2", "int8", "int4"};

} // namespace

const char* name(Compression compression) {
  const auto index = static_cast<size_t>(compression);
  return index < kNames.size() ? kNames[index] : "unknown compression";
}

std::optional<Compression> compression_named(const std::string& name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) {
      return static_cast<Compression>(i);
    }
  }
  return std::nullopt;
}

std::string compression_names() {
  std::string all = kNames.front();
  for (size_t i = 1; i < kNames.size(); ++i) {
    all += (i + 1 < kNames.size() ? ", " : " or ");
    all += kNames[i];
  }
  return all;
}

} // namespace hvd
