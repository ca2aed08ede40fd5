#include "common/thread_clock.h"

#include <pthread.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace hvd {

ThreadClock::ThreadClock() : thread_(gettid()) {
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
  std::ifstream file("/proc/self/task/" + std::to_string(thread_) + "/stat");
  std::string line;
  std::getline(file, line);
  // The state follows the name, which is in brackets and may hold any.
  const auto name_end = line.rfind(')');
  return name_end != std::string::npos && line.compare(name_end, 3, ") S") == 0;
}

} // namespace hvd
