#pragma once

#include "common/thread_clock.h"
#include "transport/transport.h"

#include <mutex>
#include <optional>

namespace hvd {

/// How long at least one thread of this process has been waiting for a group.
///
/// A call that blocks says so. Of one that waits for a future nobody is told,
/// and DDP does that. So from when a future is asked for to when it is complete
/// the thread that asked last counts as waiting while it sleeps, as the kernel
/// knows it, whatever it sleeps for; not while it runs or wants a core.
///
/// Threads: every member may be called from any thread.
class WaitingTime {
 public:
  /// While it lives, the calling thread waits.
  class Call {
   public:
    explicit Call(WaitingTime& time) : time_(time) {
      time_.begin_call();
    }
    ~Call() {
      time_.end_call();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    WaitingTime& time_;
  };

  /// The calling thread has asked for a future. `by_engine`: on a thread of
  /// the engine, in a callback, so the program's own waits for what follows.
  void ask(bool by_engine);

  /// A future that was asked for is about to be complete.
  void answer();

  Clock::duration total();

 private:
  struct Moment {
    Deadline time = Clock::now();
    /// Of who has asked, while that is not answered and the thread is there.
    std::optional<ThreadClock::Time> awake;
  };

  void begin_call();
  void end_call();
  /// What has passed; called before anything changes that this depends on.
  void count();
  Moment now() const;

  std::mutex mutex_;
  size_t calls_ = 0; ///< that block
  size_t futures_ = 0; ///< asked for and not complete
  std::optional<ThreadClock> asker_; ///< of the last
  Moment counted_; ///< up to here
  Clock::duration total_{0};
};

} // namespace hvd
