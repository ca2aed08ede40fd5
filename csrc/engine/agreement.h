#pragma once

#include "engine/operation.h"

#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <vector>

namespace hvd {

/// The ranks called different collectives. All of them know, so the group is
/// still in step and usable.
class Mismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One rank's side of the agreement that travels in frame headers: all ranks
/// run the same collectives in the same order, and cut the same batches.
///
/// c10d promises that the ranks submit the same collectives in one order, not
/// that they do so at the same time. The first of the queue may run at any
/// time, for every rank will run it; what travels with it must be ready on
/// every rank. Each header says how much is ready on its sender. The least of
/// those numbers, which all ranks learn from the same frames, is what is agreed
/// on for the next batch. A rank also sends what else it has ready, if all had
/// the same when they last told: should that be so again, it counts at once.
///
/// Threads: while one is in check(), others, one at a time, may enlist(); and
/// agreed() may be called by any.
class Agreement {
 public:
  /// Takes note of the next collective in sequence; returns the hash of all
  /// before it.
  uint64_t enlist(const Collective& collective);

  /// Collectives with numbers below this one are ready on every rank, and may
  /// be cut together now.
  uint64_t agreed() const {
    return agreed_;
  }

  /// Whether those above may be added, for which there is no agreement.
  bool may_exceed() const {
    return in_step_;
  }

  /// `tail`: see FrameHeader.
  FrameHeader header(const Batch& batch, uint64_t tail) const;

  /// Compares the frames of all ranks. Returns how many of the batch's
  /// collectives all of them run now: the whole batch, or its agreed part, or
  /// none if one differs, and then its first goes next, alone. Throws Mismatch,
  /// of the first, if that is the one, which says what each rank called, on
  /// every rank alike; or std::runtime_error if the ranks have parted before.
  size_t check(const Batch& batch, const std::vector<const std::byte*>& frames);

 private:
  /// Sum of Signature::hash over all that was enlisted. A sum, so that one
  /// collective found different can be taken out again.
  uint64_t history_ = 0;
  uint64_t taken_out_ = 0;
  std::atomic<uint64_t> agreed_{0};
  bool in_step_ = true; ///< whether the last headers had one tail
};

} // namespace hvd
