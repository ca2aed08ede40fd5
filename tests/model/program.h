#pragma once

#include "common/collective.h"
#include "engine/engine.h"
#include "random.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hvd::model {

/// What an element is depends on its place modulo this, a prime to no size.
constexpr size_t kPeriod = 31;
using Pattern = std::array<int64_t, kPeriod>;

/// A tensor of every rank of a group, in two parts that calls may name apart.
struct TensorPlan {
  at::ScalarType dtype;
  std::array<int64_t, 2> counts; ///< elements of the parts
  int64_t bound; ///< no element is greater

  /// What is in it before the first call: [part][rank].
  std::array<std::vector<Pattern>, 2> values;
};

enum class Part { First, Second, Whole };

struct CallPlan {
  Verb verb = Verb::Barrier;
  ReduceOp op = c10d::ReduceOp::UNUSED;
  int root = -1;
  size_t tensor = 0;
  Part part = Part::Whole;
};

/// How a rank learns that an operation is done.
enum class Wait {
  Synchronous, ///< the call itself waits
  Drive,
  Timed,
  Notice, ///< as who waits for a future: without a call of the engine
  Never, ///< before shutdown
};

struct OperationPlan {
  int group = 0;
  std::vector<CallPlan> calls;
  /// For the operation submitted last, and for the end of its callback.
  bool callback_waits = false;

  // By rank.
  std::vector<int> thread;
  std::vector<Wait> wait;
  std::vector<size_t> wait_after; ///< the operation whose submission it follows

  /// What every rank has afterwards, for each call: [part][rank].
  std::vector<std::array<std::vector<Pattern>, 2>> results;
};

/// What the ranks do, drawn from a seed.
struct Program {
  explicit Program(uint64_t seed);

  std::string describe() const;

  const uint64_t seed;
  int size;
  int groups;
  int threads;
  int pauses;
  int late_rank;
  std::vector<int> hosts; ///< of each rank
  Engine::Settings settings;
  std::vector<TensorPlan> tensors;
  std::vector<OperationPlan> operations;
  std::vector<size_t> last_use; ///< of each tensor, by operation

  /// One rank calls something else, and all are told.
  struct Oddity {
    size_t operation;
    int rank;
    CallPlan call;
  };
  std::optional<Oddity> oddity;

  /// A rank that submits only after it has heard, by other means, that an
  /// earlier operation is done on another rank.
  struct Signal {
    size_t done;
    int from;
    size_t submitted;
    int to;
  };
  std::optional<Signal> signal;

  /// The rank aborts the group before this operation.
  struct Abort {
    size_t operation;
    int rank;
  };
  std::optional<Abort> abort;

 private:
  size_t add_tensor(int64_t largest, int group);
  CallPlan draw_call(size_t tensor);
  void apply(OperationPlan& operation, const CallPlan& call);
  OperationPlan draw_calls(int group);
  void add(OperationPlan operation);
  void draw_operation();
  void draw_oddity();
  void draw_signal();

  Random random_;
  std::vector<int> group_of_; ///< each tensor
  std::vector<TensorPlan> now_; ///< the tensors as the calls leave them
};

} // namespace hvd::model
