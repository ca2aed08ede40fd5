#include "program.h"

#include <algorithm>
#include <sstream>

namespace hvd::model {

namespace {

/// Integers up to here are exact.
int64_t largest_exact(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
    case at::kByte:
      return 255;
    case at::kFloat:
      return int64_t{1} << 24;
    case at::kInt:
      return int64_t{1} << 30;
    default: // double, int64
      return int64_t{1} << 50;
  }
}

int64_t combine(ReduceOp op, int64_t a, int64_t b) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return a + b;
    case c10d::ReduceOp::MIN:
      return std::min(a, b);
    default:
      return std::max(a, b);
  }
}

Pattern reduced(ReduceOp op, const std::vector<Pattern>& of_ranks) {
  Pattern result = of_ranks[0];
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
    for (size_t i = 0; i < kPeriod; ++i) {
      result[i] = combine(op, result[i], of_ranks[rank][i]);
    }
  }
  return result;
}

bool covers(Part part, size_t index) {
  return part == Part::Whole || static_cast<size_t>(part) == index;
}

} // namespace

Program::Program(uint64_t seed) : seed(seed), random_(seed) {
  constexpr std::array kFrames{0, 64, 512, 4096, 65536};
  constexpr std::array kCutoffs{0, 1024, 16384, 65536};
  constexpr std::array kThresholds{0, 256, 4096, 1 << 20};
  constexpr std::array kPauses{0, 0, 5, 20, 60};
  size = static_cast<int>(random_.between(2, random_.chance(70) ? 3 : 5));
  groups = random_.chance(25) ? 2 : 1;
  threads = random_.chance(25) ? 2 : 1;
  pauses = random_.pick(kPauses);
  late_rank = random_.chance(20) ? static_cast<int>(random_.below(size)) : -1;
  const bool shares_hosts = random_.chance(50);
  for (int rank = 0; rank < size; ++rank) {
    hosts.push_back(shares_hosts ? static_cast<int>(random_.below(3)) : rank);
  }
  settings.check = random_.chance(15);
  settings.limits.frame = random_.pick(kFrames);
  settings.limits.cutoff = random_.pick(kCutoffs);
  settings.limits.fusion_threshold =
      settings.check ? 0 : random_.pick(kThresholds);
  const int64_t longest = random_.chance(20) ? 120 : 20;
  const int64_t count = random_.between(1, longest);
  const int64_t kind = random_.below(1000);
  const int64_t odd = kind < 200 ? random_.below(count) : -1;
  if (odd >= 0) { // which must be small, or the group fails
    settings.limits.cutoff = std::max<int64_t>(settings.limits.cutoff, 1024);
  }
  for (int64_t place = 0; place < count; ++place) {
    place == odd ? draw_oddity() : draw_operation();
  }
  if (kind >= 200 && kind < 400 && threads == 1) {
    draw_signal();
  } else if (kind >= 995) {
    abort = Abort{
        static_cast<size_t>(random_.below(count)),
        static_cast<int>(random_.below(size))};
  }
  last_use.resize(tensors.size());
  for (size_t place = 0; place < operations.size(); ++place) {
    for (const auto& call : operations[place].calls) {
      last_use[call.tensor] = place;
    }
  }
}

size_t Program::add_tensor(int64_t largest, int group) {
  constexpr std::array kDtypes{
      at::kFloat, at::kDouble, at::kInt, at::kLong, at::kByte, at::kBFloat16};
  constexpr int64_t kLargestValue = 3;
  TensorPlan tensor{random_.pick(kDtypes), {}, kLargestValue, {}};
  tensor.counts = {
      random_.below(std::min<int64_t>(largest, 100)), random_.below(largest)};
  for (auto& part : tensor.values) {
    part.resize(size);
    for (auto& pattern : part) {
      for (auto& value : pattern) {
        value = random_.between(0, kLargestValue);
      }
    }
  }
  tensors.push_back(tensor);
  now_.push_back(tensor);
  group_of_.push_back(group);
  return tensors.size() - 1;
}

CallPlan Program::draw_call(size_t tensor) {
  constexpr std::array kParts{
      Part::Whole, Part::Whole, Part::First, Part::Second};
  CallPlan call;
  call.tensor = tensor;
  call.part = random_.pick(kParts);
  const int64_t kind = random_.below(100);
  if (kind < 5) {
    return call; // a barrier
  }
  call.verb = kind < 65 ? Verb::Allreduce
      : kind < 75       ? Verb::Broadcast
      : kind < 85       ? Verb::Reduce
                        : Verb::Allgather;
  if (call.verb == Verb::Allreduce || call.verb == Verb::Reduce) {
    const auto& plan = now_[tensor];
    const bool sums = plan.bound * size <= largest_exact(plan.dtype);
    call.op = sums && random_.chance(70) ? c10d::ReduceOp::SUM
        : random_.chance(50)             ? c10d::ReduceOp::MIN
                                         : c10d::ReduceOp::MAX;
  }
  if (call.verb == Verb::Broadcast || call.verb == Verb::Reduce) {
    call.root = static_cast<int>(random_.below(size));
  }
  return call;
}

void Program::apply(OperationPlan& operation, const CallPlan& call) {
  auto& tensor = now_[call.tensor];
  for (size_t part = 0; part < 2; ++part) {
    auto& values = tensor.values[part];
    if (!covers(call.part, part)) {
      continue;
    }
    if (call.verb == Verb::Allreduce) {
      std::fill(values.begin(), values.end(), reduced(call.op, values));
    } else if (call.verb == Verb::Reduce) {
      values[call.root] = reduced(call.op, values);
    } else if (call.verb == Verb::Broadcast) {
      std::fill(values.begin(), values.end(), Pattern(values[call.root]));
    }
  }
  if (call.op == c10d::ReduceOp::SUM) {
    tensor.bound *= size;
  }
  operation.calls.push_back(call);
  operation.results.push_back(tensor.values);
}

OperationPlan Program::draw_calls(int group) {
  OperationPlan operation;
  operation.group = group;
  const int64_t calls = random_.chance(10) ? random_.between(2, 4) : 1;
  for (int64_t call = 0; call < calls; ++call) {
    std::vector<size_t> known;
    for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      if (group_of_[tensor] == group) {
        known.push_back(tensor);
      }
    }
    size_t tensor = 0;
    if (!known.empty() && random_.chance(30)) {
      tensor = random_.pick(known);
    } else {
      const int64_t kind = random_.below(100);
      const int64_t largest = kind < 70 ? 100
          : kind < 90                   ? 5'000
          : kind < 99                   ? 50'000
                                        : 900'000;
      tensor = add_tensor(largest, group);
    }
    apply(operation, draw_call(tensor));
  }
  return operation;
}

void Program::add(OperationPlan operation) {
  constexpr std::array kWaits{
      Wait::Synchronous,
      Wait::Drive,
      Wait::Drive,
      Wait::Timed,
      Wait::Notice,
      Wait::Notice,
      Wait::Never};
  operation.callback_waits = random_.chance(10);
  const size_t place = operations.size();
  const bool in_burst = random_.chance(50);
  for (int rank = 0; rank < size; ++rank) {
    operation.thread.push_back(static_cast<int>(random_.below(threads)));
    const auto wait = random_.pick(kWaits);
    operation.wait.push_back(
        in_burst && wait == Wait::Synchronous ? Wait::Drive : wait);
    operation.wait_after.push_back(
        place + static_cast<size_t>(random_.below(in_burst ? 100 : 5)));
  }
  operations.push_back(std::move(operation));
}

void Program::draw_operation() {
  add(draw_calls(static_cast<int>(random_.below(groups))));
}

void Program::draw_oddity() {
  constexpr int64_t kSmall = 16;
  constexpr int kNoGroup = -1; // so that no other call names the tensor
  OperationPlan operation;
  operation.group = static_cast<int>(random_.below(groups));
  CallPlan call;
  call.verb = Verb::Allreduce;
  call.op = c10d::ReduceOp::MAX;
  call.tensor = add_tensor(kSmall, kNoGroup);
  CallPlan odd = call;
  switch (random_.below(3)) {
    case 0:
      odd.op = c10d::ReduceOp::MIN;
      break;
    case 1:
      odd = {};
      break;
    default:
      do {
        odd.tensor = add_tensor(kSmall, kNoGroup);
      } while (tensors[odd.tensor].dtype == tensors[call.tensor].dtype);
  }
  apply(operation, call);
  oddity =
      Oddity{operations.size(), static_cast<int>(random_.below(size)), odd};
  add(std::move(operation));
}

void Program::draw_signal() {
  const auto count = std::ssize(operations);
  if (count < 2) {
    return;
  }
  const int from = static_cast<int>(random_.below(size));
  const int to = static_cast<int>((from + random_.between(1, size - 1)) % size);
  const auto done = static_cast<size_t>(random_.below(count - 1));
  const auto submitted = static_cast<size_t>(
      random_.between(static_cast<int64_t>(done) + 1, count - 1));
  signal = Signal{done, from, submitted, to};
  // The rank that is ahead must not wait for what the other has not called.
  for (size_t place = 0; place < operations.size(); ++place) {
    auto& operation = operations[place];
    operation.callback_waits = false;
    if (place >= done && place <= submitted) {
      auto& wait = operation.wait[from];
      wait = place == done            ? Wait::Drive
          : wait == Wait::Synchronous ? Wait::Notice
                                      : wait;
      operation.wait_after[from] =
          std::max(operation.wait_after[from], submitted + 1);
    }
  }
  operations[done].wait_after[from] = submitted;
}

std::string Program::describe() const {
  std::ostringstream out;
  const auto& limits = settings.limits;
  out << size << " ranks, " << groups << " group(s), " << threads
      << " thread(s), pauses " << pauses << "%, late rank " << late_rank
      << ", frame " << limits.frame << ", cutoff " << limits.cutoff
      << ", threshold " << limits.fusion_threshold << ", check "
      << settings.check << ", hosts";
  for (const int host : hosts) {
    out << ' ' << host;
  }
  out << '\n';
  for (size_t place = 0; place < operations.size(); ++place) {
    const auto& operation = operations[place];
    out << "  " << place << ": group " << operation.group;
    for (const auto& call : operation.calls) {
      const auto& tensor = tensors[call.tensor];
      out << ' ' << name(call.verb) << ' ' << name(call.op) << " tensor "
          << call.tensor << " (" << tensor.dtype << ' ' << tensor.counts[0]
          << '+' << tensor.counts[1] << ") part "
          << static_cast<int>(call.part);
    }
    out << (operation.callback_waits ? ", callback waits" : "") << "; waits";
    for (int rank = 0; rank < size; ++rank) {
      constexpr std::array kNames{"sync", "drive", "timed", "notice", "never"};
      out << ' ' << kNames[static_cast<size_t>(operation.wait[rank])] << '@'
          << operation.wait_after[rank];
    }
    out << '\n';
  }
  if (oddity) {
    out << "  rank " << oddity->rank << " calls something else in "
        << oddity->operation << '\n';
  }
  if (signal) {
    out << "  rank " << signal->to << " submits " << signal->submitted
        << " when " << signal->done << " is done on rank " << signal->from
        << '\n';
  }
  if (abort) {
    out << "  rank " << abort->rank << " aborts before " << abort->operation
        << '\n';
  }
  return out.str();
}

} // namespace hvd::model
