#include "frames_tests.h"

#include "collectives/frames.h"
#include "collectives/rows.h"
#include "memory_transport.h"
#include "require.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <utility>

namespace hvd::model {

namespace {

constexpr int64_t kCapacity = 100;
constexpr int kRounds = 5;
constexpr int kPauses = 10; // percent

/// By rank, the host it is on.
using Layout = std::vector<int>;

/// Hosts of so many ranks, which are placed on them in turn.
Layout even(int hosts, int ranks_each) {
  Layout layout;
  for (int rank = 0; rank < hosts * ranks_each; ++rank) {
    layout.push_back(rank % hosts);
  }
  return layout;
}

Layout plus(Layout layout, int host) {
  layout.push_back(host);
  return layout;
}

class Counting final : public MemoryTransport {
 public:
  Counting(
      std::shared_ptr<Network> network,
      int rank,
      std::atomic<int>& between_hosts)
      : MemoryTransport(std::move(network), rank),
        between_hosts_(between_hosts) {}

  RequestPtr exchange_frames(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives) override {
    // Of what is the same tensor shared memory makes one copy for all.
    for (size_t i = 1; i < sends.size(); ++i) {
      const auto& [last, next] =
          std::pair(sends[i - 1].buffer, sends[i].buffer);
      REQUIRE(next.is_same(last) || next.numel() != last.numel());
    }
    count(sends);
    return MemoryTransport::exchange_frames(sends, receives);
  }

  RequestPtr exchange(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      const Lane& lane) override {
    count(sends);
    return MemoryTransport::exchange(sends, receives, lane);
  }

 private:
  void count(const std::vector<Transfer>& sends) {
    for (const auto& send : sends) {
      between_hosts_ += hosts().host_of(send.peer) != hosts().host_of(rank());
    }
  }

  std::atomic<int>& between_hosts_;
};

// Of another length for each rank and round, also none.
int64_t length_of(int rank, int round) {
  return (rank * 37 + round * 53) % (kCapacity + 1);
}

std::byte content_of(int rank, int round) {
  return static_cast<std::byte>(7 * rank + 3 * round);
}

/// One frame from each rank, in each round of another length.
void exchange_frames(Transport& transport) {
  const auto deadline = Clock::now() + std::chrono::minutes(1);
  FrameLane lane(transport, kCapacity);
  for (int round = 0; round < kRounds; ++round) {
    const int64_t bytes = length_of(transport.rank(), round);
    std::memset(
        lane.outgoing(),
        static_cast<int>(content_of(transport.rank(), round)),
        static_cast<size_t>(bytes));
    lane.post(bytes);
    const auto frames = lane.collect(deadline);
    REQUIRE(static_cast<int>(frames.size()) == transport.size());
    for (int rank = 0; rank < transport.size(); ++rank) {
      for (int64_t at = 0; at < length_of(rank, round); ++at) {
        REQUIRE(frames[rank][at] == content_of(rank, round));
      }
      REQUIRE(reinterpret_cast<uintptr_t>(frames[rank]) % 16 == 0);
    }
  }
}

/// One row from each rank, in all rounds of as many bytes.
void exchange_rows(Transport& transport) {
  const auto deadline = Clock::now() + std::chrono::minutes(1);
  RowExchange rows(transport, kCapacity);
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<std::byte> own(
        kCapacity, content_of(transport.rank(), round));
    rows.post(own.data(), Lane{static_cast<uint64_t>(round), 0, 0});
    const auto all = rows.collect(deadline);
    REQUIRE(static_cast<int>(all.size()) == transport.size());
    for (int rank = 0; rank < transport.size(); ++rank) {
      for (int64_t at = 0; at < kCapacity; ++at) {
        REQUIRE(all[rank][at] == content_of(rank, round));
      }
    }
  }
}

using Rounds = void (*)(Transport& transport);

void run(
    Rounds rounds,
    const Layout& layout,
    int sent_between_hosts,
    uint64_t seed) {
  const Hosts hosts(layout);
  const int size = static_cast<int>(layout.size());
  const auto network = std::make_shared<Network>(size, seed, kPauses, hosts);
  std::atomic<int> between_hosts{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      Counting transport(network, rank, between_hosts);
      rounds(transport);
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  REQUIRE(network->complaint().empty());
  REQUIRE(between_hosts == kRounds * size * sent_between_hosts);
}

/// Plays the steps of all ranks, each of which has its own frame to begin with.
void play(const Hosts& hosts, int size, size_t most_sends) {
  std::vector<std::vector<FrameStep>> steps;
  std::vector<std::vector<int>> has;
  size_t most_steps = 0;
  for (int rank = 0; rank < size; ++rank) {
    steps.push_back(frame_steps(hosts, rank));
    has.push_back({rank});
    most_steps = std::max(most_steps, steps.back().size());
    size_t sends = 0;
    for (const auto& step : steps.back()) {
      sends += step.sends.size();
    }
    REQUIRE(sends <= most_sends);
  }
  std::set<std::pair<int, int>> met;
  for (size_t step = 0; step < most_steps; ++step) {
    std::map<std::pair<int, int>, std::vector<int>> messages;
    for (int rank = 0; rank < size; ++rank) {
      if (step < steps[rank].size()) {
        for (const auto& [peer, frames] : steps[rank][step].sends) {
          REQUIRE(frames <= has[rank].size());
          REQUIRE(met.emplace(rank, peer).second);
          messages[{rank, peer}] = {
              has[rank].begin(),
              has[rank].begin() + static_cast<ptrdiff_t>(frames)};
        }
      }
    }
    for (int rank = 0; rank < size; ++rank) {
      if (step < steps[rank].size()) {
        for (const auto& [peer, ranks] : steps[rank][step].receives) {
          REQUIRE(messages.at({peer, rank}) == ranks);
          messages.erase({peer, rank});
          has[rank].insert(has[rank].end(), ranks.begin(), ranks.end());
        }
      }
    }
    REQUIRE(messages.empty());
  }
  for (auto& ranks : has) {
    std::ranges::sort(ranks);
    REQUIRE(static_cast<int>(ranks.size()) == size);
    REQUIRE(std::ranges::adjacent_find(ranks) == ranks.end());
  }
}

} // namespace

void test_frame_steps() {
  for (int size = 2; size < 16; ++size) {
    play(Hosts(even(size, 1)), size, size - 1);
  }
  for (int size = 16; size <= 70; ++size) {
    play(Hosts(even(size, 1)), size, size <= 64 ? 9 : 12);
  }
  for (int hosts = 2; hosts <= 20; ++hosts) {
    const size_t between = hosts < 16 ? hosts - 1 : 7;
    play(Hosts(even(hosts, 3)), 3 * hosts, between + 2);
    play(Hosts(plus(even(hosts, 3), 1)), 3 * hosts + 1, hosts + 2);
    play(Hosts(even(2, hosts)), 2 * hosts, 1 + between);
  }
}

void test_exchanges_of_frames(uint64_t seed) {
  for (const auto& [layout, sent_between_hosts] :
       {std::pair(Layout{0, 1, 2}, 2),
        {Layout{0, 0, 0}, 0},
        {Layout{0, 0, 1}, 1},
        {Layout{0, 1, 1, 1}, 1},
        {Layout{0, 0, 1, 1}, 1},
        {Layout{0, 1, 2, 1, 0, 1}, 2},
        {even(17, 1), 7},
        {even(16, 2), 6},
        {plus(even(16, 1), 3), 15},
        {even(1, 18), 0}}) {
    run(exchange_frames, layout, sent_between_hosts, seed);
    run(exchange_rows, layout, sent_between_hosts, seed);
  }
}

} // namespace hvd::model
