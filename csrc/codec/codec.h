#pragma once

#include <ATen/core/Tensor.h>

#include "codec/device.h"
#include "common/compression.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace hvd {

/// A message of `count` values: contiguous bytes on the host, its own or lent.
/// In the machine's byte order it is
///   values   count bytes, for 16 bits 2 * count, for int4 count / 2 rounded up
///            with value 2 i in the lower half of byte i
///   scales   from the next even byte on: 2 bytes for each block, the last of
///            which may be partial
/// and a block's bits depend on its own values alone, wherever it stands.
///
/// An 8-bit or 4-bit block scales exactly with powers of two, and nothing in it
/// saturates. A NaN, and but for fp8_e5m2 an infinity, decodes to NaN in its
/// place and leaves its neighbours alone; the casts and fp8_e5m2 keep infinity.
///
/// It converts to nothing, so that encoded values cannot be taken for numbers
/// and handed to a sum.
class Encoded {
 public:
  /// Over `bytes`, which are flat, uint8 and on the host.
  explicit Encoded(at::Tensor bytes);

  /// Of its own bytes, with undefined content.
  Encoded(Codec codec, int64_t count);

  /// The only door: for those who move bytes and do not look at them.
  const at::Tensor& bytes_to_move() const {
    return bytes_;
  }

 private:
  at::Tensor bytes_;
};

/// What tensors of that dtype hold, if it can be encoded.
std::optional<Number> number_of(at::ScalarType dtype);

/// How long a message of `count` values is. Throws a ValueError for a codec
/// that is not one.
int64_t encoded_bytes(Codec codec, int64_t count);

// All tensors are flat, contiguous and on the host: float32, float16 or
// bfloat16, and residuals float32. Arithmetic is in fp32. Sizes that do not
// match, dtypes and codecs that are not among these are a ValueError. Results
// are the same bits on all processors, for NaNs too.

/// out = factor * in, plus the residual if it is defined. What is lost on the
/// way becomes the residual; 0 where the value is not finite.
void encode(
    Codec codec,
    const at::Tensor& in,
    float factor,
    const at::Tensor& residual,
    Encoded& out);

void decode(Codec codec, const Encoded& in, at::Tensor& out);

/// Whether all numbers are.
bool all_finite(const at::Tensor& numbers);

/// The owner's stage of an all_reduce: the sum of all sources from 0 up, plus
/// the residual if it is defined, encoded. `result` becomes what everybody else
/// will decode from `out`, and the residual what that lost. `out` may be one of
/// the sources.
void decode_sum_encode(
    Codec codec,
    const std::vector<const Encoded*>& sources,
    const at::Tensor& residual,
    Encoded& out,
    at::Tensor& result);

} // namespace hvd
