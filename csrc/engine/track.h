#pragma once

#include "engine/operation.h"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <iterator>
#include <utility>

namespace hvd {

/// A queue of collectives that are started and finished in order, and the rule
/// by which they are. The engine has three, and none waits for another.
///
/// Two roles move it, each held by one thread at a time: *starting*, which does
/// not block, unless the first of the queue waits for a device, and falls to
/// whoever finds that the next batch may go; and *finishing*, which blocks and
/// falls to a caller that waits, or to the track's background thread where none
/// does.
class Track {
 public:
  Track() = default;
  Track(const Track&) = delete;
  Track& operator=(const Track&) = delete;
  virtual ~Track() = default;

  // Guarded by the engine's lock.
  std::deque<Item> queue; ///< not started
  std::deque<Batch> started; ///< finished in this order
  const Batch* awaited = nullptr; ///< by who has the role of finishing
  const Batch* being_started = nullptr; ///< which may wait for a device
  bool starting = false;
  bool finishing = false;
  size_t free_threads = 0; ///< background threads outside user code
  size_t sleeping = 0; ///< those of them that wait to be told of work
  size_t napping = 0; ///< those that will soon look for themselves
  std::condition_variable work_ready; ///< for them

  /// Takes what is to be started now from the queue, which is not empty;
  /// nothing if it has to wait. Called with the lock. `tail`: see FrameHeader.
  virtual Batch next(uint64_t tail) = 0;

  /// Called by the holder of the role, without the lock. Throws TransportError.
  virtual Rest start(Batch& batch) = 0;

  /// With the lock: one that is started and is to advance before the first of
  /// them is finished; nothing if that comes next. Who asks does it.
  virtual Batch* to_advance() {
    return nullptr;
  }

  // Called by the holder of the role, without the lock.

  /// Blocks until its last messages are on their way. Throws TransportError.
  virtual void advance(Batch& /*batch*/) {}

  /// Blocks until there is no rest of the batch's first collectives, and
  /// returns how many those are; the others, or all, have to go through the
  /// queue again. Throws Mismatch if only the first has failed, or
  /// TransportError if the group has.
  virtual size_t finish(Batch& batch) = 0;

 protected:
  /// Takes from the queue what is planned.
  Batch cut(Plan plan) {
    Batch batch;
    const auto end = queue.begin() + static_cast<ptrdiff_t>(plan.size);
    batch.items.assign(
        std::make_move_iterator(queue.begin()), std::make_move_iterator(end));
    queue.erase(queue.begin(), end);
    batch.plan = std::move(plan);
    return batch;
  }
};

} // namespace hvd
