#pragma once

// The kernels of csrc/codec for the host, on any count and any alignment: each
// step into memory of its own, so that there is little to get wrong.

#include "codec/device.h"
#include "codec/fours.h"
#include "codec/kernels.h"

#include <cstdint>
#include <vector>

namespace hvd {

/// Bytes of a message, its parts apart.
struct Parts {
  std::vector<uint8_t> values;
  std::vector<uint8_t> scales;

  bool operator==(const Parts&) const = default;
};

class Reference {
 public:
  explicit Reference(Codec codec) : codec_(codec) {}

  /// Of so many values.
  int64_t value_bytes(int64_t count) const;
  int64_t scale_bytes(int64_t count) const;

  /// As DeviceKernels::encode with one piece.
  Parts encode(
      Number number,
      const std::vector<uint8_t>& numbers,
      float factor,
      std::vector<float>& residual) const;

  /// As DeviceKernels::decode with one piece: bytes of `count` numbers.
  std::vector<uint8_t> decode(
      Number number,
      const Parts& message,
      int64_t count) const;

  /// As DeviceKernels::decode_sum_encode.
  Parts decode_sum_encode(
      const std::vector<Parts>& sources,
      int64_t count,
      std::vector<float>& residual) const;

 private:
  int64_t padded(int64_t count) const;
  std::vector<float> decoded(const Parts& message, int64_t count) const;
  Parts encoded(const std::vector<float>& values, std::vector<float>& residual)
      const;

  const Codec codec_;
};

} // namespace hvd
