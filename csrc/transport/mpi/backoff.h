#pragma once

#include "transport/transport.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace hvd::mpi {

/// How a thread waits for what it has to ask for again and again: it spins for
/// a moment, then lets others run between two questions, and then sleeps for
/// longer and longer, so that ranks that wait leave the cores to those that
/// compute.
class Backoff {
 public:
  /// `spin`: at first; nothing where there are more ranks than cores.
  explicit Backoff(std::chrono::microseconds spin) : spin_(spin) {}

  /// Between two questions.
  void rest() {
    const auto waited = Clock::now() - since_;
    if (waited < spin_) {
      return;
    }
    if (waited < kYield) {
      sched_yield();
      return;
    }
    const auto share =
        std::chrono::duration_cast<std::chrono::microseconds>(waited / kShare);
    std::this_thread::sleep_for(std::clamp(share, kShortest, kLongest));
  }

 private:
  // Sleeping takes 50 us more than asked for, so it is not for short waits.
  static constexpr std::chrono::milliseconds kYield{1};
  // What a sleep adds is little beside what was waited for already.
  static constexpr int kShare = 50;
  static constexpr std::chrono::microseconds kShortest{20};
  static constexpr std::chrono::microseconds kLongest{1000};

  const std::chrono::microseconds spin_;
  const Deadline since_ = Clock::now();
};

} // namespace hvd::mpi
