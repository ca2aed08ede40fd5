#include "unit_tests.h"

#include "codec/choice.h"
#include "collectives/running.h"
#include "engine/error_feedback.h"
#include "memory_transport.h"
#include "require.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace hvd::model {

namespace {

Signature gradient(
    int64_t count,
    at::ScalarType dtype = at::kFloat,
    ReduceOp op = c10d::ReduceOp::SUM) {
  Signature signature;
  signature.verb = Verb::Allreduce;
  signature.dtype = dtype;
  signature.op = op;
  signature.count = count;
  return signature;
}

} // namespace

void test_codec_for() {
  CompressionSettings settings{Compression::Int8, 1024, {}, {}};
  const auto chosen = [&](const Signature& signature, int size = 2) {
    return codec_for(signature, settings, size).compression;
  };
  using enum Compression;
  REQUIRE(chosen(gradient(256)) == Int8);
  REQUIRE(chosen(gradient(255)) == None);
  REQUIRE(chosen(gradient(256), 1) == None);
  for (const auto op : {c10d::ReduceOp::AVG, c10d::ReduceOp::PREMUL_SUM}) {
    REQUIRE(chosen(gradient(256, at::kFloat, op)) == Int8);
  }
  REQUIRE(chosen(gradient(512, at::kHalf)) == Int8);
  REQUIRE(chosen(gradient(512, at::kBFloat16)) == Int8);
  for (const auto dtype : {at::kDouble, at::kInt, at::kComplexFloat}) {
    REQUIRE(chosen(gradient(4096, dtype)) == None);
  }
  for (const auto op : {c10d::ReduceOp::MAX, c10d::ReduceOp::PRODUCT}) {
    REQUIRE(chosen(gradient(4096, at::kFloat, op)) == None);
  }
  auto broadcast = gradient(4096, at::kFloat, c10d::ReduceOp::UNUSED);
  broadcast.verb = Verb::Broadcast;
  REQUIRE(chosen(broadcast) == None);

  // 128 to a block, for int4 32 and with feedback, unless set.
  REQUIRE((codec_for(gradient(256), settings, 2) == Codec{Int8, false, 128}));
  settings.compression = Int4;
  REQUIRE((codec_for(gradient(256), settings, 2) == Codec{Int4, true, 32}));
  settings.block = 64;
  settings.error_feedback = false;
  REQUIRE((codec_for(gradient(256), settings, 2) == Codec{Int4, false, 64}));

  // A cast to as many bits gains nothing.
  settings.compression = Fp16;
  REQUIRE(chosen(gradient(4096)) == Fp16);
  REQUIRE(chosen(gradient(4096, at::kHalf)) == None);
  REQUIRE(chosen(gradient(4096, at::kBFloat16)) == None);

  override_compression(None);
  REQUIRE(chosen(gradient(4096)) == None);
  override_compression(Fp8);
  REQUIRE(chosen(gradient(4096, at::kHalf)) == Fp8);
  const at::ThreadLocalState here;
  std::thread([&] {
    REQUIRE(chosen(gradient(4096)) == Fp16);
    {
      const at::ThreadLocalStateGuard as_autograd_does(here);
      REQUIRE(chosen(gradient(4096)) == Fp8);
    }
    override_compression(Int8);
    REQUIRE(chosen(gradient(4096)) == Int8);
  }).join();
  REQUIRE(chosen(gradient(4096)) == Fp8);
  override_compression({});
  REQUIRE(chosen(gradient(4096)) == Fp16);
}

void test_error_feedback() {
  const auto memory = at::empty({3, 100}, at::kFloat);
  const auto tensor = [&](int64_t row, int64_t count = 100) {
    Collective collective;
    collective.signature = gradient(count);
    collective.inputs = {memory[row].narrow(0, 0, count)};
    return collective;
  };
  const auto next = [](ErrorFeedback& feedback, Collective collective) {
    feedback.enlist(collective);
    return collective.residual;
  };
  ErrorFeedback feedback;
  const auto first = next(feedback, tensor(0));
  const auto second = next(feedback, tensor(1));
  REQUIRE(first != second);
  // From the second step on it is known what the first one follows.
  const auto again = next(feedback, tensor(0));
  REQUIRE(again != first);
  REQUIRE(next(feedback, tensor(1)) == second);
  REQUIRE(next(feedback, tensor(0)) == again);

  // Another tensor between them: neither is known to be what it was.
  const auto third = next(feedback, tensor(2));
  const auto behind_third = next(feedback, tensor(1));
  REQUIRE(behind_third != second);
  REQUIRE(next(feedback, tensor(0)) == again);
  REQUIRE(next(feedback, tensor(2)) == third);
  REQUIRE(next(feedback, tensor(1)) == behind_third);
  // But it is when it is as it was before.
  REQUIRE(next(feedback, tensor(0)) == again);
  REQUIRE(next(feedback, tensor(1)) == second);

  // Another shape in the same memory.
  REQUIRE(next(feedback, tensor(0, 99)) != again);

  // What has not come for many steps is forgotten.
  REQUIRE(feedback.size() == 5);
  for (int step = 0; step < 70; ++step) {
    next(feedback, tensor(2));
  }
  REQUIRE(feedback.size() == 1);

  // Tensors that come one after the other, each in the memory of the last.
  ErrorFeedback recycled;
  std::set<std::shared_ptr<Residual>> residuals;
  for (int count = 0; count < 4; ++count) {
    auto temporary = tensor(0);
    temporary.inputs = {at::from_blob(memory.data_ptr(), {100}, at::kFloat)};
    residuals.insert(next(recycled, temporary));
  }
  REQUIRE(residuals.size() == 4);
  REQUIRE(recycled.size() <= 2);

  // Tensors that are gone when the next step begins, each from another place.
  ErrorFeedback forgetful;
  {
    std::vector<at::Tensor> gone;
    for (int count = 0; count < 10; ++count) {
      auto temporary = tensor(0);
      temporary.inputs = {gone.emplace_back(at::empty({100}, at::kFloat))};
      next(forgetful, temporary);
    }
  }
  REQUIRE(forgetful.size() == 10);
  next(forgetful, tensor(0));
  next(forgetful, tensor(0));
  REQUIRE(forgetful.size() == 2); // behind what is gone, and behind itself

  // In every order there is: a few for each, not one for each that it follows.
  const auto many = at::empty({40, 100}, at::kFloat);
  ErrorFeedback shuffled;
  for (int64_t stride = 1; stride < 40; stride += 2) {
    for (int64_t i = 0; i < 41; ++i) {
      Collective collective;
      collective.signature = gradient(100);
      collective.inputs = {many[i * stride % 41 % 40]};
      shuffled.enlist(collective);
    }
  }
  REQUIRE(shuffled.size() <= 4 * 40);
}

void test_window_of_encoded() {
  constexpr int kRanks = 2;
  constexpr int64_t kSegments = 32;
  constexpr int64_t kElements = 256 * 1024; // of a segment
  // Of 8 segments and the one after them, each rank's contribution and sum,
  // sent and to be received.
  constexpr size_t kMostWaiting = kRanks * 9 * 4;
  const auto network = std::make_shared<Network>(kRanks, 0, 0);
  struct Rank {
    Rank(const std::shared_ptr<Network>& network, int number)
        : transport(network, number),
          tensor(
              at::full(
                  {kRanks * kSegments * kElements},
                  number + 1.0F,
                  at::kHalf)) {
      collective.signature = gradient(tensor.numel(), at::kHalf);
      collective.signature.codec = {Compression::Fp16};
      collective.inputs = collective.outputs = {tensor};
      running = start(collective, transport);
    }

    void finish() {
      const auto deadline = Clock::now() + std::chrono::minutes(1);
      running->advance(deadline);
      running->finish(deadline);
      REQUIRE(tensor.equal(at::full_like(tensor, 3.0F)));
    }

    MemoryTransport transport;
    at::Tensor tensor;
    Collective collective;
    RunningPtr running;
  };
  Rank one(network, 0); // which starts before the other is there
  Rank other(network, 1);
  std::thread first([&] { one.finish(); });
  other.finish();
  first.join();
  REQUIRE(network->most_waiting() <= kMostWaiting);
}

} // namespace hvd::model
