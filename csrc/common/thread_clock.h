#pragma once

#include <chrono>
#include <ctime>
#include <optional>

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

  bool has_ended() const {
    return now() == Time::max();
  }

  /// Whether the thread waits for something else than a core. Reads a file of
  /// /proc, some 5 us; false where it tells nothing.
  bool is_asleep() const;

  /// now(), and how long the thread has waited for a core: the rest of the time
  /// it slept. Reads such a file; now() alone where it tells nothing; nothing
  /// if the thread has ended.
  std::optional<Time> awake() const;

  bool operator==(const ThreadClock&) const = default; ///< of the same thread

 private:
  clockid_t id_;
};

} // namespace hvd
