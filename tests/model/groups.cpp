#include "groups.h"

#include "require.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace hvd::model {

namespace {

double ranks_per_core(int size) {
  return size / static_cast<double>(std::thread::hardware_concurrency());
}

/// To as little as the kernel allows.
void shorten(int socket) {
  const int least = 0;
  REQUIRE(
      setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)) == 0);
}

} // namespace

std::vector<int> segment_files(int size) {
  std::vector<int> files;
  for (int rank = 0; rank < size; ++rank) {
    files.push_back(memfd_create("hvd-model", MFD_CLOEXEC));
    REQUIRE(files.back() >= 0);
    REQUIRE(ftruncate(files.back(), shm::Segment::length(size)) == 0);
  }
  return files;
}

Group share_memory(int size, bool attach) {
  const auto segments = segment_files(size);
  for (const int segment : segments) {
    ShmTransport::initialise(segment, size);
  }
  Group group;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<ShmTransport::Rank> all;
    for (int peer = 0; peer < size; ++peer) {
      const bool self = peer == rank;
      all.push_back(
          {peer, segments[peer], self ? -1 : getpid(), -1, self || attach});
    }
    group.push_back(
        std::make_unique<ShmTransport>(rank, all, ranks_per_core(size)));
  }
  std::for_each(segments.begin(), segments.end(), close); // they are mapped
  return group;
}

std::array<int, 2> socket_pair() {
  std::array<int, 2> ends{};
  const int kind = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
  REQUIRE(socketpair(AF_UNIX, kind, 0, ends.data()) == 0);
  return ends;
}

Group connect(int size, int rails, bool cramped) {
  using Rails = std::vector<int>;
  std::vector<std::vector<Rails>> sockets(size, std::vector<Rails>(size));
  for (int rank = 0; rank < size; ++rank) {
    for (int peer = 0; peer < rank; ++peer) {
      for (int rail = 0; rail < rails; ++rail) {
        const auto pair = socket_pair();
        if (cramped) {
          std::ranges::for_each(pair, shorten);
        }
        sockets[rank][peer].push_back(pair[0]);
        sockets[peer][rank].push_back(pair[1]);
      }
    }
  }
  Group group;
  for (int rank = 0; rank < size; ++rank) {
    group.push_back(
        std::make_unique<TcpTransport>(
            rank,
            sockets[rank],
            ranks_per_core(size),
            std::chrono::seconds(30)));
  }
  return group;
}

} // namespace hvd::model
