// The engine, step by step.

#include "engine_tests.h"

#include "arguments.h"
#include "engine/engine.h"
#include "memory_transport.h"
#include "require.h"

#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <deque>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace hvd::model {

namespace {

constexpr int kRanks = 2;
constexpr Limits kLimits{64 * 1024, 0, 1 << 20};

/// An engine, and the operations it was given.
struct Caller {
  struct Call {
    std::shared_ptr<Operation> operation;
    std::promise<void> concluded;
  };

  Caller(
      std::unique_ptr<Transport> transport,
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::string& name) {
    auto group = c10::make_intrusive<c10d::PrefixStore>(name, store);
    Witness witness(group, transport->rank(), transport->size(), name);
    engine = std::make_shared<Engine>(
        std::move(transport),
        /*device=*/nullptr,
        std::move(witness),
        std::make_shared<Statistics>(name, std::vector<double>{}),
        Engine::Settings{kLimits, false});
  }

  Call& submit(const at::Tensor& tensor, bool caller_waits) {
    Call& call = calls.emplace_back();
    call.operation = std::make_shared<Operation>();
    call.operation->collectives = {
        Arguments(*engine, kTimeout).allreduce(tensor, c10d::ReduceOp::SUM)};
    call.operation->on_done = [&call](const std::exception_ptr& error) {
      REQUIRE(error == nullptr);
      call.concluded.set_value();
      return std::function<void()>();
    };
    engine->submit(call.operation, caller_waits);
    return call;
  }

  void start(const at::Tensor& tensor) {
    submit(tensor, /*caller_waits=*/false);
  }

  static constexpr std::chrono::seconds kTimeout{60};
  std::shared_ptr<Engine> engine;
  std::deque<Call> calls;
};

/// Tells of what is posted, before it is.
class ToldTransport final : public MemoryTransport {
 public:
  ToldTransport(
      std::shared_ptr<Network> network,
      int rank,
      std::function<void(uint64_t seq)> on_exchange,
      std::function<void()> on_frame)
      : MemoryTransport(std::move(network), rank),
        on_exchange_(std::move(on_exchange)),
        on_frame_(std::move(on_frame)) {}

  RequestPtr exchange(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      const Lane& lane) override {
    on_exchange_(lane.seq);
    return MemoryTransport::exchange(sends, receives, lane);
  }

  RequestPtr exchange_frames(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives) override {
    if (!sends.empty()) {
      on_frame_();
    }
    return MemoryTransport::exchange_frames(sends, receives);
  }

 private:
  const std::function<void(uint64_t seq)> on_exchange_;
  const std::function<void()> on_frame_;
};

/// Number 1 is large and waits for the memory of number 0. The thread that is
/// done with that one is kept from starting it by the frame of number 2, so the
/// thread that submits number 3 does; and is not through with it when all else
/// is done and every thread asleep. `driven`: a caller waits for number 1,
/// which has no background thread. Returns whether it came to that: a
/// background thread that has not gone to sleep yet may start it instead.
bool test_started_for_another(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::string& name,
    bool driven) {
  constexpr auto kAsleep = std::chrono::milliseconds(20);
  const auto network = std::make_shared<Network>(kRanks, 0, 0);
  std::promise<void> second_frame;
  std::promise<void> first_large;
  size_t frames = 0;
  const auto on_frame = [&] {
    if (++frames == 2) {
      second_frame.set_value();
      first_large.get_future().wait();
    }
  };
  const auto submitter = std::this_thread::get_id();
  std::optional<std::thread::id> starter;
  const auto on_exchange = [&](uint64_t seq) {
    if (seq == 1 && !starter) {
      starter = std::this_thread::get_id();
      first_large.set_value();
      while (network->frames()[0].size() < 3) {
        std::this_thread::yield();
      }
      std::this_thread::sleep_for(kAsleep);
    }
  };
  Caller one(
      std::make_unique<ToldTransport>(network, 0, on_exchange, on_frame),
      store,
      name);
  Caller other(std::make_unique<MemoryTransport>(network, 1), store, name);
  std::vector<std::vector<at::Tensor>> tensors;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto large = at::full({100'000}, rank + 1.0F);
    tensors.push_back({large.narrow(0, 0, 8), large});
    for (int small = 0; small < 2; ++small) {
      tensors.back().push_back(at::full({8}, rank + 1.0F));
    }
  }
  network->hold();
  for (const auto& tensor : tensors[1]) {
    other.start(tensor);
  }
  one.start(tensors[0][0]);
  auto& large = one.submit(tensors[0][1], /*caller_waits=*/driven);
  std::thread waiting;
  if (driven) {
    waiting =
        std::thread([&] { one.engine->drive_until_done(*large.operation); });
  }
  std::this_thread::sleep_for(kAsleep);
  one.start(tensors[0][2]);
  network->release();
  second_frame.get_future().wait();
  one.start(tensors[0][3]);
  REQUIRE(
      large.concluded.get_future().wait_for(Caller::kTimeout / 2) ==
      std::future_status::ready);
  if (driven) {
    waiting.join();
  }
  for (auto* rank : {&one, &other}) {
    rank->engine->shutdown();
  }
  REQUIRE(tensors[0][1].slice(0, 8).eq(3).all().item<bool>());
  REQUIRE(tensors[0][0].eq(6).all().item<bool>());
  return starter == submitter;
}

} // namespace

void test_burst(const c10::intrusive_ptr<c10d::Store>& store) {
  constexpr int kCalls = 100;
  const auto network = std::make_shared<Network>(kRanks, 0, 0);
  network->hold(); // until all is submitted everywhere
  std::deque<Caller> ranks;
  std::vector<at::Tensor> tensors;
  for (int rank = 0; rank < kRanks; ++rank) {
    auto& caller = ranks.emplace_back(
        std::make_unique<MemoryTransport>(network, rank), store, "burst");
    for (int call = 0; call < kCalls; ++call) {
      tensors.push_back(at::full({8}, call + rank, at::kFloat));
      caller.start(tensors.back());
    }
  }
  network->release();
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int call = 0; call < kCalls; ++call) {
      ranks[rank].engine->drive_until_done(*ranks[rank].calls[call].operation);
      REQUIRE(
          tensors[rank * kCalls + call].equal(
              at::full({8}, 2 * call + 1, at::kFloat)));
    }
  }
  for (const auto& rank : ranks) {
    rank.engine->shutdown();
  }
  // The first takes all, or if it was not held back for so long only one, and
  // tells of some, and then the second tells of the others.
  for (const auto& frames : network->frames()) {
    REQUIRE(!frames.empty() && frames.size() <= 3);
  }
}

void test_started_for_others(const c10::intrusive_ptr<c10d::Store>& store) {
  constexpr int kTurns = 20;
  for (const std::string name : {"noticed", "driven"}) {
    int turn = 0;
    while (!test_started_for_another(
        store, name + std::to_string(turn), name == "driven")) {
      REQUIRE(++turn < kTurns);
    }
  }
}

} // namespace hvd::model
