#include "common/thread_clock.h"

#include <pthread.h>

namespace hvd {

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

} // namespace hvd
