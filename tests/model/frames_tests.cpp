#include "frames_tests.h"

#include "collectives/frames.h"
#include "memory_transport.h"
#include "require.h"

#include <atomic>
#include <cstring>
#include <thread>

namespace hvd::model {

namespace {

constexpr int64_t kCapacity = 100;
constexpr int kRounds = 5;
constexpr int kPauses = 10; // percent

/// By rank, the host it is on.
using Layout = std::vector<int>;

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
    for (const auto& send : sends) {
      between_hosts_ += hosts().host_of(send.peer) != hosts().host_of(rank());
    }
    return MemoryTransport::exchange_frames(sends, receives);
  }

 private:
  std::atomic<int>& between_hosts_;
};

// Of another length for each rank and round, also none.
int64_t length_of(int rank, int round) {
  return (rank * 37 + round * 53) % (kCapacity + 1);
}

std::byte content_of(int rank, int round) {
  return static_cast<std::byte>(16 * rank + round);
}

void run(Transport& transport) {
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

void run(const Layout& layout, uint64_t seed) {
  const Hosts hosts(layout);
  const int size = static_cast<int>(layout.size());
  const auto network = std::make_shared<Network>(size, seed, kPauses, hosts);
  std::atomic<int> between_hosts{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      Counting transport(network, rank, between_hosts);
      run(transport);
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  REQUIRE(network->complaint().empty());
  REQUIRE(between_hosts == kRounds * size * (hosts.count() - 1));
}

} // namespace

void test_frame_lane(uint64_t seed) {
  for (const Layout& layout :
       {Layout{0, 0, 0},
        Layout{0, 1, 2},
        Layout{0, 0, 1},
        Layout{0, 1, 1, 1},
        Layout{0, 0, 1, 1},
        Layout{0, 1, 2, 1, 0, 1}}) {
    run(layout, seed);
  }
}

} // namespace hvd::model
