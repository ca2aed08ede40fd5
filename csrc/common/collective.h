#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "common/compression.h"
#include "common/device_call.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hvd {

using ReduceOp = c10d::ReduceOp::RedOpType;

enum class Verb : uint8_t {
  Allreduce,
  SparseAllreduce,
  Reduce,
  Broadcast,
  Allgather,
  Gather,
  Scatter,
  ReduceScatter,
  Alltoall,
  Barrier,
};

/// What every rank must call alike, in a fixed layout that travels in frame
/// headers. Two equal signatures are one and the same collective.
struct Signature {
  Verb verb = Verb::Barrier;
  ReduceOp op = c10d::ReduceOp::UNUSED;
  at::ScalarType dtype = at::kByte;
  at::DeviceType device = at::kCPU;
  int32_t root = -1;
  int64_t count = 0; ///< elements of the largest contribution of any rank
  uint64_t counts_hash = 0; ///< of the per-rank element counts, where uneven
  Codec codec;

  bool operator==(const Signature& other) const;
  bool operator!=(const Signature& other) const {
    return !(*this == other);
  }

  /// Mixes the signature with its place in the sequence.
  uint64_t hash(uint64_t seq) const;

  /// For messages, e.g. `all_reduce(float32[4], SUM)`.
  std::string describe() const;
};

/// What encoding has lost so far on this rank, flat and fp32; undefined before
/// anything was.
struct Residual {
  at::Tensor contribution; ///< of this rank's tensor
  at::Tensor shard; ///< of the sum that this rank has made
  std::vector<Residual> pieces; ///< instead, of a tensor that travels in such
  uint64_t step = 0; ///< of ErrorFeedback, in which it was made
  bool finite = true; ///< whether all of the sum was then
};

/// One collective as engine and algorithms see it: dense, contiguous tensors on
/// the host (but for SparseAllreduce, what `stays_on_device` and a
/// `device_call`), checked arguments.
/// What the lists hold:
///
///   verb           inputs                        outputs
///   Allreduce      1 tensor                      1, of its size; may be it
///   SparseAllreduce 1 sparse COO tensor          1, usually the same
///   Reduce         1 tensor                      1 on the root, else none
///   Broadcast      1 tensor on the root          1 elsewhere
///   Allgather      1 tensor                      1 per rank, any sizes
///   Gather         1 tensor                      1 per rank on the root
///   Scatter        1 per rank on the root        1 tensor
///   ReduceScatter  1 per rank, any sizes         1, as large as inputs[rank]
///   Alltoall       1 per rank                    1 per rank
///   Barrier        none                          none
struct Collective {
  Signature signature;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::chrono::milliseconds timeout{0};
  int divisor = 1; ///< of AVG: the ranks of the group

  /// Fills an input that stands for a tensor of the caller: as a contiguous
  /// copy, or as the product with a factor.
  struct CopyIn {
    at::Tensor to;
    at::Tensor from;
    at::Tensor factor; ///< undefined for a copy
  };

  /// Done when the collective starts, in this order: an earlier one may have
  /// yet to write what is copied.
  std::vector<CopyIn> copy_in;

  /// Tensors of the caller that are not contiguous, or share memory with an
  /// input, each with the contiguous output that stands for it.
  std::vector<std::pair<at::Tensor, at::Tensor>> copy_back;

  /// Where the caller's tensors are on a device and the host moves them: the
  /// moment when the caller has computed them; else null.
  std::shared_ptr<StreamMark> on_device;

  /// The transport takes them there: only those that are not contiguous have
  /// stand-ins, on the host.
  bool stays_on_device = false;

  /// Of tensors that a device's own backend moves; else null.
  std::shared_ptr<DeviceCall> device_call;

  /// With error feedback: of the same tensor in an earlier step than this.
  std::shared_ptr<Residual> residual;
  uint64_t step = 0; ///< of ErrorFeedback

  /// Addresses of the caller's tensors, begin and end; see MemoryInUse.
  std::vector<std::pair<uintptr_t, uintptr_t>> memory;

  // Given by the engine when it is submitted:
  uint64_t seq = 0; ///< place in the group's sequence
  int64_t bytes = 0; ///< tensor_bytes(); a sparse output may replace its input
};

inline bool is_compressed(const Collective& collective) {
  return collective.signature.codec.compression != Compression::None;
}

/// Bytes of the largest contribution of any rank; of an all_to_all, and of
/// sparse tensors, of this rank's.
int64_t tensor_bytes(const Collective& collective);

/// Whether its results are what some rank has given.
bool only_moves(Verb verb);

const char* name(Verb verb);
/// For profilers: "hvd:<name>".
const char* title(Verb verb);
const char* name(ReduceOp op);

} // namespace hvd
