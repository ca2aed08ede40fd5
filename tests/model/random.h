#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

namespace hvd::model {

/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

  /// 0 to n - 1.
  int64_t below(int64_t n) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(n));
  }

  /// first to last.
  int64_t between(int64_t first, int64_t last) {
    return first + below(last - first + 1);
  }

  bool chance(int percent) {
    return below(100) < percent;
  }

  template <typename List>
  auto& pick(List& list) {
    return list[static_cast<size_t>(below(std::ssize(list)))];
  }

  /// Usually nothing, often a yield, at times a sleep: so that threads meet in
  /// every order. `percent`: how often something.
  void pause(int percent) {
    if (!chance(percent)) {
      return;
    }
    if (chance(60)) {
      std::this_thread::yield();
    } else {
      const int64_t longest = chance(5) ? 2000 : 100;
      std::this_thread::sleep_for(std::chrono::microseconds(below(longest)));
    }
  }

 private:
  uint64_t state_;
};

} // namespace hvd::model
