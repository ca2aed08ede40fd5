#include "frame_track_tests.h"

#include "engine/frame_track.h"
#include "memory_transport.h"
#include "require.h"

#include <ATen/ops/full.h>

#include <deque>
#include <thread>

namespace hvd::model {

namespace {

constexpr int kRanks = 2;
constexpr Limits kLimits{1024, 64 * 1024, 1024 * 1024};

/// A rank without an engine.
class Rank {
 public:
  Rank(const std::shared_ptr<Network>& network, int number)
      : number_(number),
        transport_(network, number),
        track_(transport_, agreement_, statistics_, kLimits) {}

  /// Calls all_reduce for `calls` tensors of so many elements.
  void call(
      uint64_t calls,
      int64_t count,
      std::chrono::minutes timeout = std::chrono::minutes(1)) {
    for (; calls > 0; --calls) {
      auto& collective = collectives_.emplace_back();
      collective.signature.verb = Verb::Allreduce;
      collective.signature.op = c10d::ReduceOp::SUM;
      collective.signature.dtype = at::kFloat;
      collective.signature.count = count;
      collective.timeout = timeout;
      collective.seq = collectives_.size() - 1;
      collective.inputs = collective.outputs = {
          at::full({count}, static_cast<float>(collective.seq + number_))};
      track_.queue.push_back(
          {nullptr, &collective, agreement_.enlist(collective), {}});
    }
  }

  /// Sends a frame; returns how many collectives it could settle.
  size_t start() {
    batch_ = track_.next(collectives_.size());
    batch_.deadline = Clock::now() + batch_.timeout();
    track_.start(batch_);
    return batch_.items.size();
  }

  std::chrono::milliseconds left() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
        batch_.deadline - Clock::now());
  }

  /// Returns how many it has settled; the others are in the queue again.
  size_t finish() {
    const size_t settled = track_.finish(batch_);
    track_.queue.insert(
        track_.queue.begin(),
        batch_.items.begin() + static_cast<ptrdiff_t>(settled),
        batch_.items.end());
    settled_ += settled;
    for (uint64_t call = 0; call < collectives_.size(); ++call) {
      const auto& output = collectives_[call].outputs[0];
      const bool done = call < settled_;
      REQUIRE(output.eq(done ? 2.0F * call + 1 : call + number_)
                  .all()
                  .item<bool>());
    }
    return settled;
  }

 private:
  const int number_;
  MemoryTransport transport_;
  Agreement agreement_;
  Statistics statistics_{"frames", {}};
  FrameTrack track_;
  std::deque<Collective> collectives_;
  Batch batch_;
  uint64_t settled_ = 0;
};

class Pair {
  const std::shared_ptr<Network> network_ =
      std::make_shared<Network>(kRanks, 0, 0);

 public:
  Rank one{network_, 0};
  Rank other{network_, 1};

  void start() {
    one.start();
    other.start();
  }

  /// Returns how many their frames settle, which is as much on both.
  size_t finish() {
    size_t settled = 0;
    std::thread beside([&] { settled = one.finish(); });
    const size_t settled_too = other.finish();
    beside.join();
    REQUIRE(settled == settled_too);
    return settled;
  }

  size_t exchange() {
    start();
    return finish();
  }
};

void test_all_at_once(int64_t count) {
  Pair pair;
  for (int burst = 0; burst < 3; ++burst) {
    pair.one.call(10, count);
    pair.other.call(10, count);
    REQUIRE(pair.exchange() == 10);
  }
}

/// The time of those that are not agreed on begins when they are.
void test_timeout() {
  using std::chrono::minutes;
  for (const bool in_step : {true, false}) {
    Pair pair;
    pair.one.call(1, 8, minutes(9));
    pair.one.call(1, 8, minutes(3));
    pair.other.call(in_step ? 2 : 1, 8, minutes(3));
    pair.start();
    REQUIRE(pair.one.left() > minutes(6));
    REQUIRE(pair.finish() == (in_step ? 2 : 1));
    REQUIRE((pair.one.left() <= minutes(3)) == in_step);
  }
}

void test_one_is_late() {
  Pair pair;
  pair.one.call(10, 8);
  pair.other.call(1, 8);
  REQUIRE(pair.exchange() == 1); // as ever
  pair.other.call(4, 8);
  REQUIRE(pair.one.start() == 1); // out of step, nothing is sent in vain
  REQUIRE(pair.other.start() == 1);
  REQUIRE(pair.finish() == 1);
  pair.other.call(5, 8);
  REQUIRE(pair.exchange() == 3); // the second frame told of five
  REQUIRE(pair.exchange() == 5); // and the third of ten
}

void test_agreed_part_of_a_longer_batch() {
  Pair pair;
  pair.one.call(2, 8);
  pair.other.call(2, 8);
  REQUIRE(pair.exchange() == 2); // in step
  // What the frame has no room for goes in buckets: of one rank all but the
  // first, which is all of the other.
  pair.one.call(20, 200);
  pair.other.call(1, 200);
  REQUIRE(pair.exchange() == 1);
  pair.other.call(19, 200);
  REQUIRE(pair.exchange() == 1);
  REQUIRE(pair.exchange() == 18);
}

} // namespace

void test_frame_track() {
  test_all_at_once(0);
  test_all_at_once(8); // in the frame
  test_all_at_once(200); // the first in the frame
  test_all_at_once(1000); // all in one bucket
  test_timeout();
  test_one_is_late();
  test_agreed_part_of_a_longer_batch();
}

} // namespace hvd::model
