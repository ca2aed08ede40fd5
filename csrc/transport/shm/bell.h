#pragma once

#include "transport/transport.h"

#include <atomic>
#include <cstdint>

namespace hvd::shm {

/// Wakes the threads of one process from any other, by a futex in memory that
/// both have mapped.
///
/// A sleeper first reads strikes(), then looks for what it waits for, then
/// calls wait() with that number: whatever is rung for in between is not
/// missed.
class Bell {
 public:
  uint32_t strikes() const {
    return strikes_.load(std::memory_order_acquire);
  }

  void ring();

  /// Sleeps until the bell has rung more than `seen` times, or until `until`.
  void wait(uint32_t seen, Deadline until);

 private:
  std::atomic<uint32_t> strikes_{0};
  std::atomic<uint32_t> sleepers_{0};
};

static_assert(std::atomic<uint32_t>::is_always_lock_free);

} // namespace hvd::shm
