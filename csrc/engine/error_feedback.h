#pragma once

#include "common/collective.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <ranges>
#include <utility>

namespace hvd {

/// Keeps what encoding has lost of each tensor, to be added the next time the
/// tensor is sent (Seide et al. 2014, Karimireddy et al. 2019).
///
/// A backend is not told which gradient a tensor is. It is taken for one of an
/// earlier step if it has the same signature, lies at the same place of the
/// same storage, which has lived since, and follows the same tensor, as
/// DistributedDataParallel's buckets do. Otherwise it has no residual yet: a
/// step without feedback is better than one with that of another tensor.
///
/// A step ends when a tensor comes again. If a sum was not finite, what its
/// step has left behind is dropped: the program (GradScaler, say) skips such a
/// step, in which finite gradients may be huge.
class ErrorFeedback {
 public:
  /// Gives the next collective in sequence its residual. Not thread-safe.
  void enlist(Collective& collective);

  /// To be called before the residual is used, when all earlier collectives of
  /// this tensor are done. From any thread, as end().
  void begin(const Collective& collective);

  /// To be called when the sum is there and the residual tells whether all of
  /// it is finite.
  void end(const Collective& collective);

  /// How many residuals are kept.
  size_t size() const {
    return slots_.size();
  }

 private:
  /// The addresses of a tensor and of the one sent before it.
  using Place = std::pair<uintptr_t, uintptr_t>;

  struct Slot {
    /// Another tensor can get the address of one that is gone.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    Signature signature;
    std::shared_ptr<Residual> residual;
    uint64_t step = 0; ///< of its last use
  };

  using SlotsAt = std::ranges::subrange<std::map<Place, Slot>::iterator>;

  SlotsAt at(uintptr_t address);
  void end_step();
  void make_room_at(uintptr_t address);

  std::map<Place, Slot> slots_;
  uintptr_t last_ = 0;
  uint64_t step_ = 1;
  std::atomic<uint64_t> not_finite_in_{0}; ///< the latest such step
};

} // namespace hvd
