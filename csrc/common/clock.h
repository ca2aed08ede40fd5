#pragma once

#include <algorithm>
#include <chrono>

namespace hvd {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// `timeout` from now, or a century if that is less: the clock has an end.
inline Deadline deadline_in(std::chrono::milliseconds timeout) {
  constexpr std::chrono::hours kCentury{24 * 36525};
  return Clock::now() + std::min<std::chrono::milliseconds>(timeout, kCentury);
}

} // namespace hvd
