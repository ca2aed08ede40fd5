#pragma once

#include <chrono>
#include <ctime>

namespace hvd {

/// How long a thread has been running on some core; not while it waited for
/// one, or slept. To be asked by any thread.
class ThreadClock {
 public:
  using Time = std::chrono::nanoseconds;

  /// Of the calling thread.
  ThreadClock();

  /// Time::max() if the thread has ended.
  Time now() const;

  /// Whether the thread waits for something else than a core. Reads a file of
  /// /proc, some 5 us; false where it tells nothing.
  bool is_asleep() const;

 private:
  clockid_t id_;
};

} // namespace hvd
