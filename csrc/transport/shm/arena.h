#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace hvd::shm {

/// Hands out pieces of a range of memory, by offset. Not thread-safe.
class Arena {
 public:
  explicit Arena(int64_t bytes) : free_{{0, bytes}}, free_bytes_(bytes) {}

  /// The first piece that is long enough, aligned to a cache line; nothing if
  /// there is none.
  std::optional<int64_t> take(int64_t bytes);

  void give_back(int64_t offset);

  int64_t free_bytes() const {
    return free_bytes_;
  }

 private:
  std::map<int64_t, int64_t> free_; ///< offset -> bytes; no two touch
  std::map<int64_t, int64_t> taken_;
  int64_t free_bytes_;
};

} // namespace hvd::shm
