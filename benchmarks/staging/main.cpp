// What it costs two cores to hand each other memory, as an all_reduce of two
// ranks does over shared memory: each copies its parts aside, and adds the
// other's to its own. By ordinary stores, by streaming ones, and by those that
// shm::StagingCopy chooses.
//
//   staging [CORE CORE]
//
// Where the cores share a cache, a line goes there and back in some 100 ns or
// less; where they do not, in several hundred.

#include "transport/shm/staging.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace {

using hvd::shm::Stores;
using Clock = std::chrono::steady_clock;
using Copy = std::function<void(std::byte*, const void*, int64_t)>;

constexpr int kCores = 2;
constexpr int64_t kPart = 256 * 1024; // a segment of an all_reduce
constexpr int kSlots = 4; // parts in the arena at once
constexpr int kAhead = 2; // parts that a core copies before it reads one
constexpr int kParts = 200; // with those of the other core, in no cache
constexpr int kRounds = 25;
constexpr int kTrips = 2000;

struct alignas(64) Counter {
  std::atomic<int> count{0};

  void await(int least) const {
    while (count.load(std::memory_order_acquire) < least) {
    }
  }
};

struct Core {
  std::vector<float> own = std::vector<float>(2 * kParts * kPart / 4);
  std::vector<std::byte> room = std::vector<std::byte>(kSlots * kPart + 64);
  std::byte* arena =
      room.data() + 64 - reinterpret_cast<size_t>(room.data()) % 64;
  Counter written;
  Counter read;

  float* part(int number) {
    return own.data() + number * (kPart / 4);
  }
};

void add(float* to, const std::byte* from) {
  const auto* const numbers = reinterpret_cast<const float*>(from);
  for (int64_t i = 0; i < kPart / 4; ++i) {
    to[i] += numbers[i];
  }
}

void reduce(Core& self, Core& other, const Copy& copy) {
  for (int i = 0; i < kParts + kAhead; ++i) {
    if (i < kParts) {
      other.read.await(i + 1 - kSlots);
      copy(self.arena + i % kSlots * kPart, self.part(i), kPart);
      self.written.count.store(i + 1, std::memory_order_release);
    }
    const int next = i - kAhead;
    if (next >= 0) {
      other.written.await(next + 1);
      add(self.part(kParts + next), other.arena + next % kSlots * kPart);
      self.read.count.store(next + 1, std::memory_order_release);
    }
  }
}

struct Way {
  const char* name;
  Copy copy;
  std::vector<double> times; ///< in seconds, of a part, by round
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// One thread of the two; the first one reports.
void run(
    int place,
    int core,
    std::array<Core, kCores>& cores,
    std::barrier<>& meet) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set) != 0) {
    std::fprintf(
        stderr, "staging: there is no core %d for this process\n", core);
    std::exit(1);
  }
  Core& self = cores[place];
  Core& other = cores[1 - place];
  std::array<Way, 3> ways{{
      {"ordinary", std::bind_front(hvd::shm::copy_by, Stores::Ordinary), {}},
      {"streaming", std::bind_front(hvd::shm::copy_by, Stores::Streaming), {}},
      {"chosen", hvd::shm::StagingCopy(), {}},
  }};

  const auto restart = [&] {
    meet.arrive_and_wait(); // nobody reads the counters any more
    self.written.count = self.read.count = 0;
    meet.arrive_and_wait();
    return Clock::now();
  };
  std::vector<double> trips;
  for (int round = 0; round < kRounds; ++round) {
    auto begin = restart();
    for (int i = 1; i <= kTrips; ++i) {
      other.written.await(place == 0 ? i - 1 : i);
      self.written.count.store(i, std::memory_order_release);
    }
    trips.push_back(seconds_since(begin) / kTrips);
    for (auto& [name, copy, times] : ways) {
      begin = restart();
      reduce(self, other, copy);
      meet.arrive_and_wait();
      times.push_back(seconds_since(begin) / kParts);
    }
  }
  if (place == 0) {
    std::printf("a cache line there and back: %.0f ns\n", median(trips) * 1e9);
    const double ordinary = median(ways[0].times);
    for (const auto& [name, copy, times] : ways) {
      const double time = median(times);
      std::printf(
          "256 KB each way, %-9s %6.1f us, ratio %.2f\n",
          name,
          time * 1e6,
          time / ordinary);
    }
  }
}

} // namespace

int main(int count, char** arguments) {
  std::array<int, kCores> places{0, 1};
  if (count == 1 + kCores) {
    places = {std::atoi(arguments[1]), std::atoi(arguments[2])};
  }
  if ((count != 1 && count != 1 + kCores) || places[0] == places[1]) {
    std::fprintf(stderr, "usage: staging [CORE CORE], two different ones\n");
    return 2;
  }
  std::array<Core, kCores> cores;
  std::barrier meet(kCores);
  std::vector<std::thread> threads;
  for (int place = 0; place < kCores; ++place) {
    threads.emplace_back(
        [&, place] { run(place, places[place], cores, meet); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}
