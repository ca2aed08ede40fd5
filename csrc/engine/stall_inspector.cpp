#include "engine/stall_inspector.h"

#include <algorithm>

namespace hvd {

namespace {

// How long a rank is stuck before it asks where the others are.
constexpr std::chrono::seconds kFirstComparison{1};
constexpr std::chrono::seconds kLongestInterval{60};

constexpr std::chrono::seconds kTick{1};

// How long a rank has nothing to do before it says so to others that may wait.
constexpr std::chrono::seconds kIdle{5};

// Looks in the shorter of the limits.
constexpr int kLooks = 4;

} // namespace

StallInspector::StallInspector(const Limits& limits, Deadline now)
    : limits_(limits),
      tick_(kTick),
      idle_(kIdle),
      collective_(wait_from(now)),
      message_(wait_from(now)),
      interval_(kFirstComparison),
      next_comparison_(now + interval_) {
  for (const auto limit : {limits.log, limits.end}) {
    if (limit > Clock::duration::zero()) {
      tick_ = std::min(tick_, limit / kLooks);
      idle_ = std::min(idle_, limit / kLooks);
    }
  }
}

StallInspector::Due StallInspector::inspect(
    const Witness::Call& at,
    Deadline now) {
  if (at.waiting != last_.waiting || at.seq != last_.seq) {
    collective_ = wait_from(now);
    interval_ = kFirstComparison;
    next_comparison_ = now + interval_;
    told_ = false;
  }
  if (at.message.number != last_.message.number) {
    message_ = wait_from(now);
    told_ = false;
  }
  last_ = at;

  Due due;
  const bool has_message = at.message.number > 0;
  if (at.waiting) {
    due.collective = stall(collective_, now);
    if (now >= next_comparison_) {
      due.to_compare = true;
      interval_ = std::min<Clock::duration>(2 * interval_, kLongestInterval);
      next_comparison_ = now + interval_;
    }
  } else if (!told_) {
    const auto since = std::max(collective_.since, message_.since);
    due.to_tell = told_ = now - since >= (has_message ? tick_ : idle_);
  }
  if (has_message) {
    due.message = stall(message_, now);
  }
  return due;
}

StallInspector::Stall StallInspector::stall(Wait& wait, Deadline now) const {
  const auto zero = Clock::duration::zero();
  Stall stall;
  stall.age = now - wait.since;
  stall.to_end = limits_.end > zero && stall.age >= limits_.end;
  stall.to_log = limits_.log > zero && now >= wait.next_log;
  if (stall.to_log) {
    wait.next_log = now + limits_.log;
  }
  return stall;
}

} // namespace hvd
