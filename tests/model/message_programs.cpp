#include "groups.h"
#include "messages.h"
#include "messages_tests.h"
#include "random.h"
#include "require.h"

#include <ATen/ops/empty.h>

#include <deque>
#include <thread>
#include <vector>

namespace hvd::model {

namespace {

constexpr int64_t kLongestFrames = 320 * 1024; // of many ranks, in one message

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
    bool has_talked = false;
    std::thread conversation(
        [&] { has_talked = succeeds(rank, [&] { talk(rank); }); });
    std::thread quitter;
    if (rank == gives_up_) {
      quitter = std::thread([this, rank] {
        Random(seed_ + 1).pause(100);
        group_[rank]->abort();
      });
    }
    const bool has_exchanged = succeeds(rank, [&] { exchange(rank); });
    conversation.join();
    if (quitter.joinable()) {
      quitter.join();
    }
    // The memory of who gave up may be read until all have ended: here that is
    // a plain copy, where the kernel would refuse what has been freed.
    if (rank != gives_up_ && has_talked && has_exchanged) {
      group_[rank] = nullptr;
    }
  }

  /// A rank that gives up is the only thing that may go wrong. Who notices
  /// gives up, too, as an engine does: others may wait for its other thread.
  template <typename Body>
  bool succeeds(int rank, Body body) {
    try {
      body();
      return true;
    } catch (const TransportTimeout&) {
      REQUIRE(!"a transport that hangs");
    } catch (const TransportError&) {
      REQUIRE(gives_up_ >= 0);
      group_[rank]->abort();
    }
    return false;
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

void test_messages(uint64_t seed) {
  const int size = random_size(seed);
  Program(seed, share_memory(size, /*attach=*/seed % 2 == 0)).run();
  const int rails = 1 + static_cast<int>(seed / 2 % 2);
  Program(seed, connect(size, rails, /*cramped=*/seed / 4 % 2 == 0)).run();
}

} // namespace hvd::model
