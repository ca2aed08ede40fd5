#include "common/thread_clock.h"

#include <pthread.h>

#include <fstream>
#include <string>

namespace hvd {

namespace {

/// Linux makes the clock of a thread out of its id,
/// include/linux/posix-timers.h (CPUCLOCK_PID): asking gettid() too would cost
/// each ThreadClock a system call.
pid_t thread_of(clockid_t clock) {
  return ~(clock >> 3);
}

} // namespace

ThreadClock::ThreadClock() {
  if (pthread_getcpuclockid(pthread_self(), &id_) != 0) {
    id_ = CLOCK_MONOTONIC; // as if it always ran
  }
}

ThreadClock::Time ThreadClock::now() const {
  timespec time{};
  if (clock_gettime(id_, &time) != 0) {
    return Time::max();
  }
  return std::chrono::seconds(time.tv_sec) + Time(time.tv_nsec);
}

bool ThreadClock::is_asleep() const {
  const auto thread = std::to_string(thread_of(id_));
  std::ifstream file("/proc/self/task/" + thread + "/stat");
  std::string line;
  std::getline(file, line);
  // The state follows the name, which is in brackets and may hold any.
  const auto name_end = line.rfind(')');
  return name_end != std::string::npos && line.compare(name_end, 3, ") S") == 0;
}

} // namespace hvd
