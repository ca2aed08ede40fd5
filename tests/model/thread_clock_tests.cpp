#include "thread_clock_tests.h"

#include "common/thread_clock.h"
#include "require.h"

#include <chrono>
#include <future>
#include <thread>

namespace hvd::model {

using SteadyClock = std::chrono::steady_clock;

void test_thread_clock() {
  REQUIRE(!ThreadClock().is_asleep());
  std::promise<ThreadClock> started;
  std::promise<void> over;
  std::thread thread([&] {
    started.set_value(ThreadClock());
    over.get_future().wait();
  });
  const ThreadClock clock = started.get_future().get();
  const auto deadline = SteadyClock::now() + std::chrono::minutes(1);
  while (!clock.is_asleep()) {
    REQUIRE(SteadyClock::now() < deadline);
    std::this_thread::yield();
  }
  over.set_value();
  thread.join();
  REQUIRE(!clock.is_asleep());
  REQUIRE(clock.now() == ThreadClock::Time::max());
}

} // namespace hvd::model
