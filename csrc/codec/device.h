#pragma once

// No header of torch here: device compilers read this, too.

#include "common/compression.h"

#include <cstdint>

namespace hvd {

/// What a tensor may hold that is encoded.
enum class Number : uint8_t { Float32, Float16, BFloat16 };

/// The loops of the codecs for one kind of device, as `Kernels` has those of
/// the host; the same bits as there.
///
/// All pointers are to memory of the device but for the lists themselves, which
/// are copied before a function returns. Work is put on `stream`, nothing waits
/// for it; its device must be the current one. Numbers and residuals are
/// aligned as their types are. Bytes of messages and of copies may lie
/// anywhere, and there may be any number of them; what begins at a multiple of
/// 16 is faster. Throws std::runtime_error if the device refuses.
struct DeviceKernels {
  /// Values of one tensor and their place in a message. It begins a block and
  /// ends with one, or with its tensor: then the rest of the last block counts
  /// as zeros, and `values` has no room for it.
  struct Piece {
    void* numbers; ///< of the tensor
    uint8_t* values; ///< as in Encoded
    uint8_t* scales; ///< as in Encoded; of no meaning for casts
    float* residual; ///< as many as `count`, or null
    int64_t count;
  };

  /// Bytes to be moved, on one device.
  struct Copy {
    void* to;
    const void* from;
    int64_t bytes;
  };

  /// A message of whole blocks.
  struct Source {
    const uint8_t* values;
    const uint8_t* scales;
  };

  using Stream = void*; ///< e.g. a cudaStream_t

  /// factor * numbers, plus the residual; what is lost becomes the residual.
  void (*encode)(
      Codec codec,
      Number number,
      const Piece* pieces,
      int64_t size,
      float factor,
      Stream stream);

  /// Residuals are left alone.
  void (*decode)(
      Codec codec,
      Number number,
      const Piece* pieces,
      int64_t size,
      Stream stream);

  /// The sum of all sources in their order, in fp32, plus the residual if it is
  /// not null, encoded to `out`, which may be one of the sources. What that
  /// loses becomes the residual. `count`: values, whole blocks.
  void (*decode_sum_encode)(
      Codec codec,
      const Source* sources,
      int64_t size,
      int64_t count,
      uint8_t* values,
      uint8_t* scales,
      float* residual,
      Stream stream);

  /// Hundreds of small ones at once.
  void (*copy)(const Copy* copies, int64_t size, Stream stream);
};

} // namespace hvd
