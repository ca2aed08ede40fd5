#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hvd::shm {

/// How to store to memory that another core has read.
enum class Stores {
  /// Each cache line is first taken back from the core that has read it. Where
  /// the two share a cache that costs nothing to speak of, else a copy takes
  /// several times as long.
  Ordinary,
  /// Past the caches: nothing is taken back, but what was stored is then read
  /// from memory.
  Streaming,
};

/// Copies by those stores. `to`: aligned to 16 bytes. A store after this with
/// release order, by this thread, publishes what was copied.
void copy_by(Stores stores, std::byte* to, const void* from, int64_t bytes);

/// Which stores take less time, found out by using both. That depends on where
/// the threads of the readers run, and so changes.
///
/// Not thread-safe.
class StoresChoice {
 public:
  /// What to use for the next copy: as a rule what has cost less, now and then
  /// the other.
  Stores next();

  /// What it has cost, in any one unit per byte.
  void learn(Stores used, double cost);

 private:
  std::array<double, 2> cost_{}; ///< moving average; 0 before the first copy
  uint64_t copies_ = 0;
};

/// Copies to memory that peers read, by the stores that take less time for
/// copies of about as many bytes.
///
/// Not thread-safe.
class StagingCopy {
 public:
  /// As copy_by() does.
  void operator()(std::byte* to, const void* from, int64_t bytes);

 private:
  std::array<StoresChoice, 65> choices_; ///< by the bytes' width in bits
};

} // namespace hvd::shm
