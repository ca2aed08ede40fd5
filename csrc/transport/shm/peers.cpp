#include "transport/shm/peers.h"

#include "transport/transport.h"

#include <poll.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <future>

namespace hvd::shm {

namespace {

// How long a process that is killed takes to give its memory back, at most.
constexpr std::chrono::milliseconds kDying{500};

} // namespace

Peers::Peers(std::vector<pid_t> pids, const std::vector<int>& lives)
    : pids_(std::move(pids)) {
  for (size_t peer = 0; peer < lives.size(); ++peer) {
    if (lives[peer] >= 0) {
      lives_.try_emplace(static_cast<int>(peer), lives[peer]);
    }
  }
}

bool Peers::is_gone(int peer, std::chrono::milliseconds patience) const {
  const auto life = lives_.find(peer);
  if (life == lives_.end()) {
    return false;
  }
  pollfd look{life->second, POLLIN, 0};
  return poll(&look, 1, static_cast<int>(patience.count())) > 0;
}

void Peers::read(
    int peer,
    uint64_t address,
    std::byte* to,
    int64_t bytes,
    int threads) const {
  const auto copy = [pid = pids_[peer], address, to](
                        int64_t begin, int64_t count) {
    const bool copied = read_memory(
        pid, address + static_cast<uint64_t>(begin), to + begin, count);
    return copied ? 0 : errno;
  };
  const int64_t share = bytes / threads;
  int64_t begin = 0;
  std::vector<std::future<int>> others; // which wait for theirs
  try {
    others.reserve(static_cast<size_t>(threads));
    for (; std::ssize(others) < threads - 1; begin += share) {
      others.push_back(std::async(std::launch::async, copy, begin, share));
    }
  } catch (const std::exception&) {
    // No thread or no memory for one: this one copies what is left.
  }
  int cause = copy(begin, bytes - begin);
  for (auto& other : others) {
    const int other_cause = other.get();
    cause = cause == 0 || other_cause == ESRCH ? other_cause : cause;
  }
  if (cause == 0) {
    return;
  }
  // A process that dies loses its memory first; until it is gone the others
  // could not tell why this rank gives up.
  if (cause == ESRCH && is_gone(peer, kDying)) {
    throw TransportError("it has left or died");
  }
  throw TransportError(
      std::string("cannot read its memory: ") + std::strerror(cause));
}

bool read_memory(pid_t pid, uint64_t address, std::byte* to, int64_t bytes) {
  while (bytes > 0) {
    const iovec local{to, static_cast<size_t>(bytes)};
    // NOLINTNEXTLINE: an address in another process
    const iovec remote{reinterpret_cast<void*>(address), local.iov_len};
    const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got <= 0) {
      errno = got < 0 ? errno : EIO;
      return false;
    }
    to += got;
    address += static_cast<uint64_t>(got);
    bytes -= got;
  }
  return true;
}

} // namespace hvd::shm
