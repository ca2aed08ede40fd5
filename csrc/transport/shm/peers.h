#pragma once

#include "common/descriptor.h"

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace hvd::shm {

/// The processes of the other ranks.
///
/// Threads: every member may be called from any thread.
class Peers {
 public:
  /// By rank. `lives`: file descriptors that poll() finds readable once the
  /// peer is gone, taken over; -1 where there is none.
  Peers(std::vector<pid_t> pids, const std::vector<int>& lives);

  /// Whether the process is gone, or will be within `patience`, as far as can
  /// be seen.
  bool is_gone(int peer, std::chrono::milliseconds patience = {}) const;

  /// Copies from a peer's memory, by so many threads: this one, and others as
  /// far as the system has them. Throws TransportError.
  void read(
      int peer,
      uint64_t address,
      std::byte* to,
      int64_t bytes,
      int threads) const;

 private:
  const std::vector<pid_t> pids_;
  std::map<int, Descriptor> lives_; ///< by rank, those there are
};

/// Copies up to `bytes` from a process's memory by cross-memory attach; false
/// where the system does not allow that or the process is gone.
bool read_memory(pid_t pid, uint64_t address, std::byte* to, int64_t bytes);

} // namespace hvd::shm
