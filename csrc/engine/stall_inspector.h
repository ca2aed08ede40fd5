#pragma once

#include "common/clock.h"
#include "engine/witness.h"

namespace hvd {

/// What is due because of how long a rank has been where it is. Pure, but for
/// what it remembers of the looks before.
///
/// Not thread-safe.
class StallInspector {
 public:
  /// When waiting is to be logged, again and again, and when it has to end;
  /// zero: never.
  struct Limits {
    Clock::duration log{0};
    Clock::duration end{0};
  };

  /// Of one thing that is waited for.
  struct Stall {
    Clock::duration age{0};
    bool to_log = false;
    bool to_end = false;
  };

  struct Due {
    /// Whether other ranks wait for the same collective. Seldom, and more and
    /// more so.
    bool to_compare = false;
    /// To the others, that this rank waits for no collective. Once.
    bool to_tell = false;
    Stall collective;
    Stall message;
  };

  StallInspector(const Limits& limits, Deadline now);

  /// How often to inspect.
  Clock::duration tick() const {
    return tick_;
  }

  /// `at`: where the rank is.
  Due inspect(const Witness::Call& at, Deadline now);

 private:
  struct Wait {
    Deadline since; ///< for one thing, or for none
    Deadline next_log;
  };

  Wait wait_from(Deadline now) const {
    return {now, now + limits_.log};
  }
  Stall stall(Wait& wait, Deadline now) const;

  const Limits limits_;
  Clock::duration tick_;
  Clock::duration idle_; ///< when a rank with nothing to do says so
  Witness::Call last_;
  Wait collective_;
  Wait message_;
  Clock::duration interval_; ///< between the last comparison and the next
  Deadline next_comparison_;
  bool told_ = false;
};

} // namespace hvd
