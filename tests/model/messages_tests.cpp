#include "messages_tests.h"

#include "random.h"
#include "require.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

#include <ATen/ops/empty.h>

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

namespace hvd::model {

namespace {

constexpr std::chrono::seconds kForEver{100};
constexpr int64_t kLongestStaged = 256 * 1024; // over shared memory
constexpr int64_t kLongestFrames = 320 * 1024; // of many ranks, in one message

Deadline for_ever() {
  return Clock::now() + kForEver;
}

/// What byte `place` of message `number` from a rank is.
uint8_t byte_of(uint64_t number, int from, int64_t place) {
  return static_cast<uint8_t>(
      number * 31 + from * 7 + place * 13 + place / 256);
}

at::Tensor message(uint64_t number, int from, int64_t bytes) {
  auto tensor = at::empty({bytes}, at::kByte);
  auto* const to = tensor.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < bytes; ++i) {
    to[i] = byte_of(number, from, i);
  }
  return tensor;
}

void check(const void* data, int64_t size, uint64_t number, int from) {
  const auto* const bytes = static_cast<const uint8_t*>(data);
  for (int64_t i = 0; i < size; ++i) {
    REQUIRE(bytes[i] == byte_of(number, from, i));
  }
}

void check(const at::Tensor& tensor, uint64_t number, int from) {
  check(tensor.const_data_ptr(), tensor.numel(), number, from);
}

int64_t random_frames(Random& random) {
  return random.between(1, random.chance(10) ? kLongestFrames : 64 * 1024);
}

int64_t random_bytes(Random& random) {
  switch (random.below(8)) {
    case 0: // direct or in parts; mostly when it is asked for
      return random.between(kLongestStaged + 1, 2 * 1024 * 1024);
    case 1:
    case 2: // staged
      return random.between(193, kLongestStaged);
    default: // in the letter
      return random.between(1, 192);
  }
}

double ranks_per_core(int size) {
  return size / static_cast<double>(std::thread::hardware_concurrency());
}

/// The transport of each rank.
using Group = std::vector<std::unique_ptr<Transport>>;

Group share_memory(int size, bool attach) {
  std::vector<int> segments;
  for (int rank = 0; rank < size; ++rank) {
    segments.push_back(memfd_create("hvd-model", MFD_CLOEXEC));
    REQUIRE(segments.back() >= 0);
    REQUIRE(ftruncate(segments.back(), shm::Segment::length(size)) == 0);
    ShmTransport::initialise(segments.back(), size);
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

Group connect(int size) {
  std::vector<std::vector<int>> sockets(size, std::vector<int>(size, -1));
  for (int rank = 0; rank < size; ++rank) {
    for (int peer = 0; peer < rank; ++peer) {
      std::array<int, 2> pair{};
      const int kind = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
      REQUIRE(socketpair(AF_UNIX, kind, 0, pair.data()) == 0);
      sockets[rank][peer] = pair[0];
      sockets[peer][rank] = pair[1];
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

/// A program, the same on every rank: steps that each exchange messages of one
/// size with all others, some of them under way together.
class Program {
 public:
  Program(uint64_t seed, Group group)
      : random_(seed),
        size_(static_cast<int>(group.size())),
        steps_(random_.between(5, 40)),
        pauses_(random_.chance(50) ? 0 : 30),
        seed_(seed),
        group_(std::move(group)) {
    if (random_.chance(20)) {
      gives_up_ = static_cast<int>(random_.below(size_));
    }
  }

  void run() {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([this, rank] { run_rank(rank); });
    }
    for (auto& thread : threads) {
      thread.join();
    }
  }

 private:
  struct Step {
    RequestPtr request;
    uint64_t number;
    std::vector<Transfer> receives;
    ArrivalsPtr arrivals; ///< or these, in the order of the others
    int64_t bytes;
  };

  void run_rank(int rank) {
    std::thread conversation([this, rank] { guarded([&] { talk(rank); }); });
    std::thread quitter;
    if (rank == gives_up_) {
      quitter = std::thread([this, rank] {
        Random(seed_ + 1).pause(100);
        group_[rank]->abort();
      });
    }
    guarded([&] { exchange(rank); });
    conversation.join();
    if (quitter.joinable()) {
      quitter.join();
    }
    // Its memory may be read until all have ended: here that is a plain copy,
    // where the kernel would refuse what has been freed.
    if (rank != gives_up_) {
      group_[rank] = nullptr;
    }
  }

  /// A rank that gives up is the only thing that may go wrong.
  template <typename Body>
  void guarded(Body body) {
    try {
      body();
    } catch (const TransportTimeout&) {
      REQUIRE(!"a transport that hangs");
    } catch (const TransportError&) {
      REQUIRE(gives_up_ >= 0);
    }
  }

  void exchange(int rank) {
    Random shared(seed_); // drawn from alike on every rank
    Random own(seed_ * 8 + rank);
    std::deque<Step> pending;
    for (uint64_t number = 0; number < static_cast<uint64_t>(steps_);
         ++number) {
      const bool frames = shared.chance(30);
      const int64_t bytes =
          frames ? random_frames(shared) : random_bytes(shared);
      const int64_t room = frames ? kLongestFrames : bytes;
      const bool to_read = !frames && own.chance(50);
      const bool one_buffer = shared.chance(50);
      const auto own_message = message(number, rank, bytes);
      std::vector<Transfer> sends;
      std::vector<Transfer> receives;
      for (int peer = 0; peer < size_; ++peer) {
        if (peer != rank) {
          sends.push_back(
              {peer, one_buffer ? own_message : message(number, rank, bytes)});
          if (!to_read) {
            receives.push_back({peer, at::empty({room}, at::kByte)});
          }
        }
      }
      auto& transport = *group_[rank];
      const Lane lane{number, number * 3, 0};
      auto request = frames ? transport.exchange_frames(sends, receives)
                            : transport.exchange(sends, receives, lane);
      for (auto& receive : receives) {
        receive.buffer = receive.buffer.narrow(0, 0, bytes);
      }
      auto arrivals =
          to_read ? transport.receive(others(rank), bytes, lane) : nullptr;
      pending.push_back(
          {std::move(request),
           number,
           std::move(receives),
           std::move(arrivals),
           bytes});
      own.pause(pauses_);
      const auto most = static_cast<size_t>(own.below(6));
      while (pending.size() > most) {
        end(rank, pending, own.chance(50));
      }
    }
    while (!pending.empty()) {
      end(rank, pending, true);
    }
  }

  /// The first that is under way, or the last.
  void end(int rank, std::deque<Step>& pending, bool first) {
    Step step = std::move(first ? pending.front() : pending.back());
    first ? pending.pop_front() : pending.pop_back();
    step.request->wait(for_ever());
    for (const auto& [peer, buffer] : step.receives) {
      check(buffer, step.number, peer);
    }
    if (step.arrivals) {
      step.arrivals->wait(for_ever());
      const auto peers = others(rank);
      for (size_t place = 0; place < peers.size(); ++place) {
        const void* const data = step.arrivals->data(place);
        check(data, step.bytes, step.number, peers[place]);
      }
    }
  }

  std::vector<int> others(int rank) const {
    std::vector<int> ranks;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank) {
        ranks.push_back(peer);
      }
    }
    return ranks;
  }

  /// Messages around the ring, received in another order.
  void talk(int rank) {
    Random shared(seed_ + 7);
    auto& transport = *group_[rank];
    const int next = (rank + 1) % size_;
    const int before = (rank + size_ - 1) % size_;
    for (int round = 0; round < 3; ++round) {
      std::vector<RequestPtr> sends;
      std::vector<int64_t> sizes;
      for (int tag = 0; tag < 20; ++tag) {
        sizes.push_back(random_bytes(shared) / 8 + 1);
        const auto buffer = message(tag, rank, sizes.back());
        sends.push_back(transport.send(buffer, next, tag));
      }
      for (int i = 0; i < 20; ++i) {
        const int tag = i * 7 % 20;
        auto buffer = at::empty({sizes[tag]}, at::kByte);
        const bool any = shared.chance(20);
        const auto request = any ? transport.recv_any(buffer, tag)
                                 : transport.recv(buffer, before, tag);
        request->wait(for_ever());
        REQUIRE(request->source() == before);
        check(buffer, tag, before);
      }
      for (const auto& send : sends) {
        send->wait(for_ever());
      }
    }
  }

  Random random_;
  const int size_;
  const int64_t steps_;
  const int pauses_;
  const uint64_t seed_;
  int gives_up_ = -1; ///< a rank that aborts on the way
  Group group_;
};

int random_size(uint64_t seed) {
  return static_cast<int>(Random(seed + 3).between(2, 4));
}

} // namespace

void test_memory_of_who_gave_up() {
  constexpr int64_t kBytes = 1024 * 1024; // read from the sender's memory
  const Group group = share_memory(2, /*attach=*/true);
  auto sent = message(0, 0, kBytes);
  auto received = at::empty({kBytes}, at::kByte);
  const auto receive = group[1]->exchange({}, {{0, received}}, {0, 0, 0});
  const auto send = group[0]->exchange({{1, sent}}, {}, {0, 0, 0});
  group[0]->abort();
  sent.zero_(); // it is the caller's again
  try {
    receive->wait(for_ever());
    REQUIRE(!"a message from who gave up");
  } catch (const TransportError&) {
  }
}

void test_messages_that_stay_where_they_are() {
  constexpr uint64_t kMessages = 3 * shm::Segment::kArenaBytes / kLongestStaged;
  const Group group = share_memory(2, /*attach=*/true);
  std::vector<RequestPtr> sends;
  ArrivalsPtr held;
  for (uint64_t number = 0; number < kMessages; ++number) {
    const Lane lane{number, 0, 0};
    auto arrivals = group[1]->receive({0}, kLongestStaged, lane);
    const auto buffer = message(number, 0, kLongestStaged);
    sends.push_back(group[0]->exchange({{1, buffer}}, {}, lane));
    arrivals->wait(for_ever());
    check(arrivals->data(0), kLongestStaged, number, 0);
    if (number == 0) {
      held = std::move(arrivals); // its place must not be used again
    } else {
      arrivals = nullptr;
      sends.back()->wait(for_ever());
    }
  }
  check(held->data(0), kLongestStaged, 0, 0);
  held = nullptr;
  sends.front()->wait(for_ever());
}

void test_room_for_the_message_that_is_waited_for() {
  constexpr uint64_t kMessages = 3 * shm::Segment::kArenaBytes / kLongestStaged;
  for (const bool posted : {true, false}) {
    const Group group = share_memory(2, /*attach=*/true);
    std::vector<ArrivalsPtr> arrivals(kMessages);
    std::vector<RequestPtr> sends;
    const auto post = [&](uint64_t number) {
      arrivals[number] = group[1]->receive({0}, kLongestStaged, {number, 0, 0});
    };
    const auto end = [&](uint64_t number) {
      arrivals[number]->wait(for_ever());
      check(arrivals[number]->data(0), kLongestStaged, number, 0);
      arrivals[number] = nullptr;
    };
    for (uint64_t number = 0; number < kMessages; ++number) {
      const auto buffer = message(number, 0, kLongestStaged);
      sends.push_back(group[0]->exchange({{1, buffer}}, {}, {number, 0, 0}));
      if (posted) {
        post(number);
      }
    }
    for (uint64_t number = kMessages; number-- > 0;) { // the last one first
      if (!posted) {
        post(number);
      }
      end(number);
    }
    for (const auto& send : sends) {
      send->wait(for_ever());
    }
  }
}

void test_short_messages_that_nobody_waits_for() {
  constexpr uint64_t kMessages = 100; // more than a socket holds
  constexpr int64_t kBytes = 64 * 1024;
  const Group group = connect(2);
  std::vector<at::Tensor> received;
  std::vector<RequestPtr> receives;
  std::vector<RequestPtr> sends;
  for (uint64_t number = 0; number < kMessages; ++number) {
    received.push_back(at::empty({kBytes}, at::kByte));
    receives.push_back(
        group[1]->exchange({}, {{0, received.back()}}, {number, 0, 0}));
    sends.push_back(
        group[0]->exchange(
            {{1, message(number, 0, kBytes)}}, {}, {number, 0, 0}));
  }
  for (const auto& send : sends) {
    send->wait(for_ever());
  }
  for (uint64_t number = 0; number < kMessages; ++number) {
    receives[number]->wait(for_ever());
    check(received[number], number, 0);
  }
}

void test_messages(uint64_t seed) {
  const int size = random_size(seed);
  Program(seed, share_memory(size, /*attach=*/seed % 2 == 0)).run();
  Program(seed, connect(size)).run();
}

} // namespace hvd::model
