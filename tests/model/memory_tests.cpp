// Whose memory a collective uses, and how much of it is under way at once.

#include "memory_tests.h"

#include "arguments.h"
#include "engine/engine.h"
#include "engine/large_track.h"
#include "engine/memory_in_use.h"
#include "memory_transport.h"
#include "require.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace hvd::model {

namespace {

constexpr int64_t kMega = 1024 * 1024;

using Tensors = std::vector<at::Tensor>;

Collective using_memory(Tensors inputs, Tensors outputs = {}) {
  Collective collective;
  collective.inputs = std::move(inputs);
  collective.outputs = std::move(outputs);
  return collective;
}

bool is_free(MemoryInUse& memory, const at::Tensor& tensor) {
  auto other = using_memory({tensor});
  const bool taken = memory.take(other);
  memory.give_back(other);
  return taken;
}

/// A group of one, so that nothing has to arrive. Tells which collective's
/// second stage has begun.
class Alone final : public MemoryTransport {
 public:
  explicit Alone(bool moves_by_itself)
      : MemoryTransport(std::make_shared<Network>(1, 0, 0), 0),
        moves_by_itself_(moves_by_itself) {}

  bool moves_by_itself() const override {
    return moves_by_itself_;
  }

  RequestPtr exchange(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      const Lane& lane) override {
    if (lane.stage == 1) {
      advanced = lane.seq;
    }
    return MemoryTransport::exchange(sends, receives, lane);
  }

  uint64_t advanced = 0; ///< the last that has

 private:
  const bool moves_by_itself_;
};

/// Of so many bytes each, `started` are under way from the first to be finished
/// on, and `advanced` of them in their second stage. All are known to be ready.
void test_track(
    bool moves_by_itself,
    int64_t bytes,
    size_t started,
    uint64_t advanced) {
  constexpr uint64_t kCalls = 40;
  Alone transport(moves_by_itself);
  std::deque<Collective> collectives;
  const auto tensor = at::empty({8}, at::kFloat);
  for (uint64_t call = 0; call < kCalls; ++call) {
    auto& collective =
        collectives.emplace_back(using_memory({tensor}, {tensor}));
    collective.signature.verb = Verb::Allreduce;
    collective.signature.op = c10d::ReduceOp::SUM;
    collective.signature.dtype = at::kFloat;
    collective.signature.count = tensor.numel();
    collective.seq = call;
    collective.bytes = bytes; // which is all that counts
  }
  Agreement agreement;
  Batch first;
  first.items.push_back({nullptr, &collectives[0], 0, {}});
  const auto header = agreement.header(first, /*tail=*/kCalls);
  REQUIRE(
      agreement.check(first, {reinterpret_cast<const std::byte*>(&header)}));

  LargeTrack track(transport, agreement, {});
  for (auto& collective : collectives) {
    track.queue.push_back({nullptr, &collective, 0, {}});
  }
  for (uint64_t call = 0; call < kCalls; ++call) {
    while (!track.queue.empty()) {
      Batch batch = track.next(kCalls);
      if (batch.items.empty()) {
        break;
      }
      batch.deadline = Clock::now() + std::chrono::minutes(1);
      track.started.push_back(std::move(batch));
      track.start(track.started.back());
    }
    const uint64_t left = kCalls - call;
    REQUIRE(track.started.size() == std::min<uint64_t>(started, left));
    while (Batch* const next = track.to_advance()) {
      track.advance(*next);
    }
    REQUIRE(track.finish(track.started.front()));
    track.started.pop_front();
    REQUIRE(transport.advanced == call + std::min(advanced, left) - 1);
  }
}

} // namespace

void test_memory_in_use() {
  constexpr int64_t kCount = 60;
  const auto memory = at::empty({kCount}, at::kFloat);
  const auto piece = [&](int64_t begin, int64_t end) {
    return memory.slice(0, begin, end);
  };
  MemoryInUse in_use;
  // Pieces of one tensor and, as where a result goes there, a part of one.
  auto pieces = using_memory({piece(0, 20), piece(20, 40)}, {piece(5, 10)});
  REQUIRE(in_use.take(pieces));
  for (int64_t place = 0; place < kCount; ++place) {
    REQUIRE(is_free(in_use, piece(place, place + 1)) == (place >= 40));
  }
  REQUIRE(!is_free(in_use, memory));
  REQUIRE(is_free(in_use, piece(3, 3))); // is empty
  // Refused, it takes nothing.
  auto both = using_memory({piece(50, 60), piece(39, 41)});
  REQUIRE(!in_use.take(both));
  REQUIRE(is_free(in_use, piece(50, 60)));
  in_use.give_back(pieces);
  REQUIRE(in_use.take(both));
  REQUIRE(is_free(in_use, piece(41, 50)) && is_free(in_use, piece(0, 39)));
  in_use.give_back(both);
  REQUIRE(is_free(in_use, memory));

  // All between the first element of a view and its last.
  auto column = using_memory({memory.view({6, 10}).select(1, 4)});
  REQUIRE(in_use.take(column));
  REQUIRE(is_free(in_use, piece(0, 4)) && !is_free(in_use, piece(5, 6)));
  REQUIRE(!is_free(in_use, piece(54, 55)) && is_free(in_use, piece(55, 60)));
  in_use.give_back(column);

  // Tensors that others stand in for are read and written, too.
  Collective copied;
  copied.copy_in.push_back({at::empty({10}), piece(0, 10), {}});
  copied.copy_back.emplace_back(piece(20, 30), at::empty({10}));
  REQUIRE(in_use.take(copied));
  REQUIRE(!is_free(in_use, piece(9, 10)) && !is_free(in_use, piece(20, 21)));
  REQUIRE(is_free(in_use, piece(10, 20)));
}

void test_in_place(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto network = std::make_shared<Network>(2, 0, 0);
  const auto engine = std::make_shared<Engine>(
      std::make_unique<MemoryTransport>(network, 0),
      /*device=*/nullptr,
      Witness(
          c10::make_intrusive<c10d::PrefixStore>("in place", store),
          0,
          2,
          "in place"),
      std::make_shared<Statistics>("in place", std::vector<double>{}),
      Engine::Settings{});
  const Arguments arguments(*engine, std::chrono::minutes(1));
  const auto stand_ins = [](const Collective& collective) {
    return std::pair(collective.copy_in.size(), collective.copy_back.size());
  };
  using StandIns = std::pair<size_t, size_t>;
  const auto memory = at::empty({4, 10}, at::kFloat);
  const auto row = [&](int64_t number) { return memory[number]; };
  const auto rows = memory.slice(0, 0, 2);
  const c10d::ReduceOp sum = c10d::ReduceOp::SUM;

  const auto whole = arguments.allreduce(memory, sum);
  REQUIRE(stand_ins(whole) == StandIns(0, 0));
  REQUIRE(whole.outputs[0].data_ptr() == memory.data_ptr());
  REQUIRE(stand_ins(arguments.allreduce(memory.t(), sum)) == StandIns(1, 1));
  REQUIRE(stand_ins(arguments.broadcast(memory.t(), 0)) == StandIns(1, 0));
  REQUIRE(stand_ins(arguments.broadcast(memory.t(), 1)) == StandIns(0, 1));

  // The part of this rank, where it belongs; and that of the other one.
  REQUIRE(stand_ins(arguments.allgather_into(rows, row(0))) == StandIns(0, 0));
  REQUIRE(stand_ins(arguments.allgather_into(rows, row(1))) == StandIns(0, 1));
  const auto scattered = arguments.reduce_scatter_from(row(0), rows, sum);
  REQUIRE(stand_ins(scattered) == StandIns(0, 0));
  const auto elsewhere = arguments.reduce_scatter_from(row(1), rows, sum);
  REQUIRE(stand_ins(elsewhere) == StandIns(0, 1));

  // Beside one another, or the whole of one in a part of another.
  const auto turns = arguments.alltoall({row(1), row(3)}, {row(0), row(2)});
  REQUIRE(stand_ins(turns) == StandIns(0, 0));
  const auto swapped = arguments.alltoall({row(0), row(2)}, {row(2), row(0)});
  REQUIRE(stand_ins(swapped) == StandIns(0, 2));
  engine->shutdown();
}

void test_most_under_way() {
  test_track(/*moves_by_itself=*/true, 8 * kMega, 8, 4);
  test_track(/*moves_by_itself=*/true, 24 * kMega, 2, 1);
  test_track(/*moves_by_itself=*/true, 100 * kMega, 1, 1);
  test_track(/*moves_by_itself=*/false, kMega, 4, 1);
}

} // namespace hvd::model
