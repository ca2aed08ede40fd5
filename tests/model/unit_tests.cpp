#include "unit_tests.h"

#include "collectives/running.h"
#include "common/rank_names.h"
#include "engine/large_track.h"
#include "memory_transport.h"
#include "require.h"

#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include <deque>
#include <thread>

namespace hvd::model {

namespace {

constexpr int kRanks = 2;

Collective allreduce(
    int64_t count,
    at::ScalarType dtype = at::kFloat,
    ReduceOp op = c10d::ReduceOp::SUM) {
  Collective collective;
  collective.signature.verb = Verb::Allreduce;
  collective.signature.dtype = dtype;
  collective.signature.op = op;
  collective.signature.count = count;
  return collective;
}

Collective broadcast(int64_t count, at::ScalarType dtype = at::kFloat) {
  auto collective = allreduce(count, dtype, c10d::ReduceOp::UNUSED);
  collective.signature.verb = Verb::Broadcast;
  collective.signature.root = 0;
  return collective;
}

Collective compressed(
    int64_t count,
    Compression compression = Compression::Int8,
    bool error_feedback = false) {
  auto collective = allreduce(count);
  collective.signature.codec = {compression, error_feedback, 32};
  return collective;
}

/// `agreed`: the first of them that all ranks have ready.
Plan plan_of(
    const std::vector<Collective>& list,
    const Limits& limits,
    size_t agreed) {
  std::vector<const Collective*> ready;
  for (const auto& collective : list) {
    ready.push_back(&collective);
  }
  return plan(ready, agreed, limits);
}

Plan plan_of(const std::vector<Collective>& list, const Limits& limits) {
  return plan_of(list, limits, list.size());
}

using Framed = std::vector<std::pair<size_t, int64_t>>;

/// What can be compared.
Framed framed(const Plan& plan) {
  Framed result;
  for (const auto& [member, offset] : plan.framed) {
    result.emplace_back(member, offset);
  }
  return result;
}

using Buckets = std::vector<std::vector<size_t>>;

using Ranks = std::vector<int>;

void test_layout() {
  const Hosts hosts({7, 3, 7, 7, 3});
  REQUIRE(hosts.count() == 2 && hosts.have_levels());
  REQUIRE((hosts.ranks_on(0) == Ranks{0, 2, 3}));
  REQUIRE((hosts.ranks_on(1) == Ranks{1, 4}));
  REQUIRE(hosts.host_of(4) == 1 && hosts.place_of(4) == 1);
  REQUIRE(hosts.host_of(3) == 0 && hosts.place_of(3) == 2);
  REQUIRE(hosts.fewest() == 2);
  REQUIRE((hosts.ranks_in(0) == Ranks{0, 1}));
  REQUIRE((hosts.ranks_in(1) == Ranks{2, 4}));
  REQUIRE((hosts.ranks_in(2) == Ranks{3, 1}));
}

void test_is_small() {
  const Limits limits{64, 1024, 4096};
  REQUIRE(is_small(allreduce(256), limits));
  REQUIRE(!is_small(allreduce(257), limits));
  REQUIRE(is_small(broadcast(16), limits));
  REQUIRE(!is_small(broadcast(17), limits));
  REQUIRE(is_small(Collective{}, limits)); // a barrier
  REQUIRE(is_small(allreduce(16), {64, 0, 0})); // the frame takes it
  REQUIRE(!is_small(allreduce(17), {64, 0, 0}));
  auto alltoall = broadcast(0);
  alltoall.signature.verb = Verb::Alltoall;
  REQUIRE(!is_small(alltoall, limits)); // ranks do not know each other's sizes
}

void test_frames() {
  // Contributions begin at multiples of 16 and end within the frame.
  auto plan = plan_of({allreduce(1), broadcast(5), allreduce(4)}, {64, 0, 64});
  REQUIRE(plan.size == 3 && plan.buckets.empty());
  REQUIRE((framed(plan) == Framed{{0, 0}, {1, 16}, {2, 48}}));

  // One byte more than the frame: the all_reduces leave it for a bucket.
  plan = plan_of({allreduce(1), broadcast(5), allreduce(5)}, {64, 1024, 4096});
  REQUIRE(plan.size == 3);
  REQUIRE((framed(plan) == Framed{{1, 0}}));
  REQUIRE((plan.buckets == Buckets{{0, 2}}));

  // What no bucket takes ends the batch at the end of the frame.
  plan = plan_of({broadcast(8), broadcast(8), broadcast(1)}, {64, 0, 4096});
  REQUIRE(plan.size == 2);
  REQUIRE((framed(plan) == Framed{{0, 0}, {1, 32}}));

  // Empty tensors and barriers take no room.
  plan = plan_of({Collective{}, allreduce(0), allreduce(16)}, {64, 0, 64});
  REQUIRE(plan.size == 3);
  REQUIRE((framed(plan) == Framed{{0, 0}, {1, 0}, {2, 0}}));
}

void test_threshold() {
  const std::vector<Collective> four(4, allreduce(4));
  REQUIRE(plan_of(four, {64, 0, 0}).size == 1);
  REQUIRE(plan_of(four, {64, 0, 15}).size == 1); // at least the first
  REQUIRE(plan_of(four, {64, 0, 16}).size == 1);
  REQUIRE(plan_of(four, {64, 0, 31}).size == 1);
  REQUIRE(plan_of(four, {64, 0, 32}).size == 2);
  REQUIRE(plan_of(four, {64, 0, 64}).size == 4);
}

void test_buckets() {
  // Each dtype and op makes its own, in order of first appearance.
  const Limits limits{0, 1024, 4096};
  auto plan = plan_of(
      {allreduce(4),
       allreduce(4, at::kDouble),
       allreduce(4, at::kFloat, c10d::ReduceOp::MAX),
       allreduce(8),
       Collective{},
       allreduce(1, at::kDouble)},
      limits);
  REQUIRE(plan.size == 6);
  REQUIRE((framed(plan) == Framed{{4, 0}}));
  REQUIRE((plan.buckets == Buckets{{0, 3}, {1, 5}, {2}}));

  // Alone, what a frame cannot take travels as it is, large or not.
  for (const int64_t count : {256, 1'000'000}) {
    plan = plan_of({allreduce(count)}, limits);
    REQUIRE(plan.size == 1 && plan.framed.empty());
    REQUIRE((plan.buckets == Buckets{{0}}));
    plan = plan_of({broadcast(count)}, limits);
    REQUIRE(plan.size == 1 && plan.framed.empty());
    REQUIRE((plan.buckets == Buckets{{0}}));
  }
}

void test_compressed() {
  const Limits limits{64, 1024, 4096};
  REQUIRE(is_small(compressed(256), limits));
  REQUIRE(!is_small(compressed(257), limits));
  REQUIRE(!is_small(compressed(1, Compression::Int4, true), limits));

  // Never in a frame, not even alone, and with their like only.
  auto plan = plan_of({compressed(1)}, limits);
  REQUIRE(plan.framed.empty() && (plan.buckets == Buckets{{0}}));
  plan = plan_of(
      {allreduce(1),
       compressed(100),
       compressed(1, Compression::Fp8),
       compressed(1),
       Collective{}},
      limits);
  REQUIRE(plan.size == 5);
  REQUIRE((framed(plan) == Framed{{0, 0}, {4, 16}}));
  REQUIRE((plan.buckets == Buckets{{1, 3}, {2}}));
}

void test_not_agreed() {
  const Limits limits{64, 1024, 256};
  // The frame has room for them, and for what goes with none in a bucket.
  auto plan = plan_of({allreduce(4), allreduce(8), broadcast(4)}, limits, 1);
  REQUIRE(plan.size == 3 && plan.agreed == 1 && plan.buckets.empty());
  REQUIRE((framed(plan) == Framed{{0, 0}, {1, 16}, {2, 48}}));

  // It has not: the first stays where it would be alone.
  plan = plan_of({allreduce(4), allreduce(16), broadcast(4)}, limits, 1);
  REQUIRE(plan.size == 3 && plan.agreed == 1);
  REQUIRE((framed(plan) == Framed{{0, 0}, {2, 16}}));
  REQUIRE((plan.buckets == Buckets{{1}}));

  // One bucket for all, agreed on or not.
  plan = plan_of({allreduce(20), allreduce(20), broadcast(16)}, limits, 1);
  REQUIRE(plan.size == 3 && plan.agreed == 1);
  REQUIRE((framed(plan) == Framed{{2, 0}}));
  REQUIRE((plan.buckets == Buckets{{0, 1}}));

  // What is agreed on and does not fit goes first.
  plan = plan_of({allreduce(20), allreduce(50), allreduce(1)}, limits, 2);
  REQUIRE(plan.size == 1 && plan.agreed == 1);
  // Of what is not, as much as fits.
  plan = plan_of({allreduce(20), allreduce(50), allreduce(1)}, limits, 1);
  REQUIRE(plan.size == 1 && plan.agreed == 1);
  plan = plan_of({broadcast(8), broadcast(8), broadcast(1)}, limits, 1);
  REQUIRE(plan.size == 2 && plan.agreed == 1);
}

/// Whatever the queue, the frame's parts are aligned, disjoint and within the
/// limit, every member of the batch travels once, and tensors do not matter.
void test_random_plans() {
  Random random(0);
  for (int round = 0; round < 20'000; ++round) {
    const Limits limits{
        random.below(4) * 512, random.below(4) * 1024, random.below(4) * 2048};
    std::vector<Collective> queue;
    for (int64_t left = random.between(1, 30); left > 0; --left) {
      const auto dtype = random.chance(50) ? at::kFloat : at::kByte;
      const auto next = random.chance(60) ? allreduce(random.below(300), dtype)
                                          : broadcast(random.below(100), dtype);
      if (is_small(next, limits) || queue.empty()) {
        queue.push_back(next);
      }
    }
    const size_t agreed = random.between(1, queue.size());
    const auto plan = plan_of(queue, limits, agreed);
    REQUIRE(plan.size >= 1 && plan.size <= queue.size());
    const std::vector<Collective> first(queue.begin(), queue.begin() + agreed);
    const auto without = plan_of(first, limits);
    REQUIRE(plan.agreed == without.size);
    REQUIRE(plan.size == plan.agreed || plan.agreed == agreed);
    auto in_frame = framed(plan);
    REQUIRE(in_frame.size() >= without.framed.size());
    in_frame.resize(without.framed.size());
    REQUIRE(in_frame == framed(without));
    std::vector<int> travels(plan.size);
    int64_t end = 0;
    for (const auto& [member, offset] : plan.framed) {
      const auto& signature = queue[member].signature;
      REQUIRE(offset % 16 == 0 && offset >= end);
      end = offset +
          signature.count *
              static_cast<int64_t>(c10::elementSize(signature.dtype));
      REQUIRE(end <= limits.frame);
      ++travels[member];
    }
    for (const auto& members : plan.buckets) {
      for (const size_t member : members) {
        const auto& signature = queue[member].signature;
        const auto& first = queue[members[0]].signature;
        REQUIRE(signature.dtype == first.dtype && signature.op == first.op);
        REQUIRE(members.size() == 1 || signature.verb == Verb::Allreduce);
        ++travels[member];
      }
    }
    REQUIRE(travels == std::vector<int>(plan.size, 1));

    for (auto& collective : queue) {
      collective.inputs = {at::Tensor()};
      collective.seq = random.next();
    }
    const auto again = plan_of(queue, limits, agreed);
    REQUIRE(
        again.size == plan.size && framed(again) == framed(plan) &&
        again.buckets == plan.buckets);
  }
}

} // namespace

void test_hosts() {
  test_layout();
  REQUIRE(!Hosts().have_levels());
  REQUIRE(!Hosts(Ranks{1, 1, 1}).have_levels()); // one host
  REQUIRE(!Hosts(Ranks{2, 0, 1}).have_levels()); // one rank on each
  REQUIRE(Hosts(Ranks{2, 1, 1}).have_levels());
  REQUIRE(Hosts(Ranks{2, 1, 1}).fewest() == 1);
}

void test_rank_names() {
  REQUIRE(name_ranks({3}) == "rank 3");
  REQUIRE(name_ranks({0, 1}) == "ranks 0-1");
  REQUIRE(name_ranks({0, 2, 3, 4, 9, 11}) == "ranks 0,2-4,9,11");
  REQUIRE(by_rank({" a"}, "; ") == "rank 0 a");
  REQUIRE(by_rank({"", ""}, "; ").empty());
  REQUIRE(
      by_rank({" b", " a", "", " a", " b", " a"}, ", ") ==
      "ranks 0,4 b, ranks 1,3,5 a");
}

void test_plan() {
  test_is_small();
  test_frames();
  test_threshold();
  test_buckets();
  test_compressed();
  test_not_agreed();
  test_random_plans();
}

void test_window() {
  constexpr int64_t kSegments = 1000;
  // Of 16 segments, in two stages, two ranks send and post receives: each of
  // them may be a window ahead of the other.
  constexpr size_t kMostWaiting = 2 * 2 * 2 * 2 * 16;
  const auto network = std::make_shared<Network>(kRanks, 0, 0);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&network, rank] {
      MemoryTransport transport(network, rank);
      const int64_t elements = transport.segment_bytes() / sizeof(float);
      auto tensor = at::full({kRanks * kSegments * elements}, rank + 1.0F);
      auto collective = allreduce(tensor.numel());
      collective.inputs = collective.outputs = {tensor};
      const auto running = start(collective, transport);
      const auto deadline = Clock::now() + std::chrono::minutes(1);
      running->advance(deadline);
      running->finish(deadline);
      REQUIRE(tensor.equal(at::full_like(tensor, 3.0F)));
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  REQUIRE(network->most_waiting() <= kMostWaiting);
}

void test_ahead() {
  constexpr int64_t kCalls = 10;
  constexpr int64_t kCount = 1000;
  const auto network = std::make_shared<Network>(kRanks, 0, 0);
  struct Rank {
    Rank(const std::shared_ptr<Network>& network, int number)
        : transport(network, number), track(transport, agreement, {}) {
      for (int64_t call = 0; call < kCalls; ++call) {
        auto& collective = collectives.emplace_back(allreduce(kCount));
        collective.seq = call;
        collective.inputs =
            collective.outputs = {at::full({kCount}, number + 1.0F)};
        track.queue.push_back({nullptr, &collective, 0, {}});
      }
      while (!track.queue.empty()) {
        track.started.push_back(track.next(kCalls));
        track.started.back().deadline = Clock::now() + std::chrono::minutes(1);
        track.start(track.started.back());
      }
    }

    void finish_one() {
      while (Batch* const next = track.to_advance()) {
        track.advance(*next);
      }
      REQUIRE(track.finish(track.started.front()));
      track.started.pop_front();
    }

    MemoryTransport transport;
    Agreement agreement;
    LargeTrack track;
    std::deque<Collective> collectives;
  };
  Rank one(network, 0);
  Rank other(network, 1);
  std::thread first([&] { one.finish_one(); });
  other.finish_one(); // which tells each that both have all
  first.join();

  std::thread second([&] { one.finish_one(); });
  // Half of a tensor in each stage, and a number.
  constexpr uint64_t kAll = kCalls * (kCount * sizeof(float) + sizeof(int64_t));
  while (one.transport.sent().network < kAll) {
    REQUIRE(Clock::now() < one.track.started.back().deadline);
    std::this_thread::yield();
  }
  while (!other.track.started.empty()) {
    other.finish_one();
  }
  second.join();
  while (!one.track.started.empty()) {
    one.finish_one();
  }
  for (const Rank* rank : {&one, &other}) {
    for (const auto& collective : rank->collectives) {
      REQUIRE(collective.outputs[0].equal(at::full({kCount}, 3.0F)));
    }
  }
}

} // namespace hvd::model
