#include "common/thread_clock.h"

#include <pthread.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace hvd {

namespace {

/// Linux makes the clock of a thread out of its id,
/// include/linux/posix-timers.h (CPUCLOCK_PID): asking gettid() too would cost
/// each ThreadClock a system call.
pid_t thread_of(clockid_t clock) {
  return ~(clock >> 3);
}

/// The first line of what the kernel tells of a thread.
std::string line_of(clockid_t clock, const char* file) {
  std::ifstream stream(
      "/proc/self/task/" + std::to_string(thread_of(clock)) + '/' + file);
  std::string line;
  std::getline(stream, line);
  return line;
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
  const auto line = line_of(id_, "stat");
  // The state follows the name, which is in brackets and may hold any.
  const auto name_end = line.rfind(')');
  return name_end != std::string::npos && line.compare(name_end, 3, ") S") == 0;
}

std::optional<ThreadClock::Time> ThreadClock::awake() const {
  // Nanoseconds that it ran, which lag behind, and that it waited for a core.
  std::istringstream line(line_of(id_, "schedstat"));
  int64_t ran = 0;
  int64_t waited = 0;
  line >> ran >> waited;
  const auto time = now();
  return time == Time::max() ? std::nullopt
                             : std::optional(time + Time(waited));
}

} // namespace hvd
