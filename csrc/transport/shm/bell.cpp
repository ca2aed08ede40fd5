#include "transport/shm/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace hvd::shm {

namespace {

// Without FUTEX_PRIVATE_FLAG: the waiters are in several processes.
void futex(
    std::atomic<uint32_t>& word,
    int operation,
    uint32_t value,
    const timespec* timeout) {
  // NOLINTNEXTLINE: the one way to call it
  syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

} // namespace

void Bell::ring() {
  strikes_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    futex(strikes_, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

void Bell::wait(uint32_t seen, Deadline until) {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
      until - Clock::now());
  if (left.count() <= 0) {
    return;
  }
  constexpr long kSecond = 1'000'000'000;
  const timespec timeout{
      static_cast<time_t>(left.count() / kSecond),
      static_cast<long>(left.count() % kSecond)};
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  // The kernel compares once more; every return is followed by a new look.
  if (strikes_.load(std::memory_order_seq_cst) == seen) {
    futex(strikes_, FUTEX_WAIT, seen, &timeout);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

} // namespace hvd::shm
