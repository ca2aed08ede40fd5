#pragma once

#include "collectives/running.h"
#include "common/collective.h"
#include "common/thread_clock.h"
#include "engine/plan.h"
#include "engine/timeline.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace hvd {

/// What one c10d call asks of the engine: one or more collectives that complete
/// together. Once submitted, the engine owns it.
struct Operation {
  using OnDone = std::function<std::function<void()>(std::exception_ptr)>;

  std::vector<Collective> collectives;

  /// Called once, in the order of the sequence, when all collectives are done
  /// or one has failed, and before any waiter learns of it. It must not block
  /// nor wait for other operations. What it returns, if anything, is run after
  /// that and may do both.
  OnDone on_done;

  std::exception_ptr error; ///< the first of its collectives
  size_t remaining = 0; ///< collectives not settled
  std::optional<ThreadClock> caller; ///< but for a thread of the engine's
  bool done = false; ///< guarded by the engine's lock
};

/// One collective in the engine.
struct Item {
  std::shared_ptr<Operation> operation;
  Collective* collective;
  uint64_t history = 0; ///< see Agreement::enlist
  Deadline submitted;
};

/// What finish() has yet to see of a batch that was started.
enum class Rest {
  Outputs,
  Agreement, ///< the outputs are on their way by themselves
  Nothing,
};

/// What precedes the payload of every frame: as long as a cache line.
struct FrameHeader {
  uint64_t seq = 0; ///< of the first collective of the batch
  uint64_t tail = 0; ///< collectives that this rank has ready, see Agreement
  uint64_t history = 0; ///< hash of everything before `seq`
  // Shorter, for what they should overlook shows in the next `history`.
  uint32_t agreed = 0; ///< hash of the batch's part that is agreed on
  uint32_t batch = 0; ///< hash of all of it
  Signature signature; ///< of its first collective
};
static_assert(sizeof(FrameHeader) == 64);

/// Collectives that travel together.
struct Batch {
  std::vector<Item> items;
  Plan plan; ///< of small ones
  FrameHeader header; ///< that tells the other ranks of those, or is to
  Rest rest = Rest::Outputs;
  std::exception_ptr error; ///< of these alone; the group goes on
  std::vector<RunningPtr> running; ///< what is on the way beside the frame
  Deadline deadline;
  Times times; ///< but for `submitted`

  /// The least of those that are agreed on.
  std::chrono::milliseconds timeout() const {
    auto least = items[0].collective->timeout;
    for (size_t member = 1; member < plan.agreed; ++member) {
      least = std::min(least, items[member].collective->timeout);
    }
    return least;
  }
};

} // namespace hvd
