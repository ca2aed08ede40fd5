#pragma once

#include "common/collective.h"

#include <cstdint>
#include <map>
#include <memory>

namespace hvd {

/// Keeps what encoding has lost of each tensor, to be added the next time the
/// tensor is sent (Seide et al. 2014, Karimireddy et al. 2019).
///
/// A backend is not told which gradient a tensor is. It is taken for the one of
/// the step before if it has the same signature, lies at the same place of the
/// same storage, which has lived since, and follows the same tensor, as
/// DistributedDataParallel's buckets do. Otherwise its residual is dropped: a
/// step without feedback is better than one with that of another tensor.
///
/// Not thread-safe.
class ErrorFeedback {
 public:
  /// The residual for the next collective in sequence.
  std::shared_ptr<Residual> next(const Collective& collective);

  /// Of how many tensors a residual is kept.
  size_t size() const {
    return slots_.size();
  }

 private:
  struct Slot {
    /// Another tensor can get the address of one that is gone.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    Signature signature;
    const void* follows; ///< the tensor sent before
    std::shared_ptr<Residual> residual;
    uint64_t round = 0; ///< of its last use
  };

  std::map<const void*, Slot> slots_; ///< by address of the tensor
  const void* last_ = nullptr;
  uint64_t round_ = 1; ///< ends when a tensor comes again
};

} // namespace hvd
