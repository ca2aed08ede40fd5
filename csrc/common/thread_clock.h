#pragma once

#include <ctime>

#include <chrono>

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

 private:
  clockid_t id_;
};

} // namespace hvd
