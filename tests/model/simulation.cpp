#include "simulation.h"

#include "arguments.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <sstream>
#include <thread>

namespace hvd::model {

namespace {

constexpr std::chrono::minutes kTimeout{10}; // the watch of main() is shorter

/// Calls `visit` with a null pointer to the C++ type of `dtype`.
template <typename Visit>
void with_type(at::ScalarType dtype, Visit visit) {
  switch (dtype) {
    case at::kFloat:
      return visit(static_cast<float*>(nullptr));
    case at::kDouble:
      return visit(static_cast<double*>(nullptr));
    case at::kInt:
      return visit(static_cast<int32_t*>(nullptr));
    case at::kLong:
      return visit(static_cast<int64_t*>(nullptr));
    case at::kByte:
      return visit(static_cast<uint8_t*>(nullptr));
    default:
      return visit(static_cast<c10::BFloat16*>(nullptr));
  }
}

void fill(const at::Tensor& tensor, const Pattern& pattern) {
  with_type(tensor.scalar_type(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    T* to = tensor.mutable_data_ptr<T>();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      to[i] = static_cast<T>(pattern[i % kPeriod]);
    }
  });
}

bool holds(const at::Tensor& tensor, const Pattern& pattern) {
  bool equal = true;
  with_type(tensor.scalar_type(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = tensor.const_data_ptr<T>();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      equal = equal && from[i] == static_cast<T>(pattern[i % kPeriod]);
    }
  });
  return equal;
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  }
}

/// Whether an error says that the rank called that, alone or among others.
bool says_called(const std::string& text, int rank, const std::string& call) {
  const auto said = " called " + call;
  for (auto at = text.find(said); at != std::string::npos;
       at = text.find(said, at + 1)) {
    const auto begin = text.find_last_of(' ', at - 1) + 1;
    std::istringstream ranks(text.substr(begin, at - begin)); // as "0,2-5"
    for (int first = 0; ranks >> first; ranks.ignore()) {
      int last = first;
      if (ranks.peek() == '-') {
        ranks.ignore();
        ranks >> last;
      }
      if (first <= rank && rank <= last) {
        return true;
      }
    }
  }
  return false;
}

} // namespace

class Simulation::Rank {
 public:
  Rank(
      Simulation& simulation,
      int rank,
      const c10::intrusive_ptr<c10d::Store>& store);

  void run();
  std::string describe() const;

 private:
  /// One operation on this rank.
  struct Call {
    std::shared_ptr<Operation> operation;
    std::vector<std::vector<at::Tensor>> gathered; ///< by call
    size_t ordinal = 0; ///< in its group
    bool submitted = false;
    std::exception_ptr error; ///< guarded by `mutex_`, like what follows
    bool concluded = false;
    bool called_back = false;
  };

  const Program& program() const {
    return simulation_.program_;
  }
  at::Tensor part_of(size_t tensor, Part part) const;
  Collective collective(Call& call, const CallPlan& plan) const;
  void prepare(size_t place, size_t ordinal);
  void run_thread(int thread);
  void submit(size_t place, Random& random);
  std::function<void()> conclude(size_t place, std::exception_ptr error);
  void wait(size_t place, Random& random);
  void check(size_t place);
  void check_oddity(size_t place, const std::exception_ptr& error);
  [[noreturn]] void die(size_t place, const std::string& why);

  Simulation& simulation_;
  const int rank_;
  std::vector<std::shared_ptr<Engine>> engines_; ///< of the groups
  std::vector<at::Tensor> tensors_;
  std::vector<Call> calls_;

  // By thread, for describe().
  std::vector<std::atomic<const char*>> doing_;
  std::vector<std::atomic<size_t>> place_;

  /// By group. Not guarded, because the engine concludes one at a time.
  std::vector<size_t> concluded_;

  std::mutex mutex_; ///< guards all that follows
  std::condition_variable changed_;
  std::vector<size_t> turn_; ///< by group: how many are submitted
  std::vector<Call*> last_submitted_; ///< by group
  size_t left_; ///< to submit
};

Simulation::Rank::Rank(
    Simulation& simulation,
    int rank,
    const c10::intrusive_ptr<c10d::Store>& store)
    : simulation_(simulation),
      rank_(rank),
      calls_(program().operations.size()),
      doing_(program().threads),
      place_(program().threads),
      concluded_(program().groups),
      turn_(program().groups),
      last_submitted_(program().groups),
      left_(calls_.size()) {
  for (int group = 0; group < program().groups; ++group) {
    const auto name =
        std::to_string(program().seed) + '.' + std::to_string(group);
    engines_.push_back(
        std::make_shared<Engine>(
            std::make_unique<MemoryTransport>(
                simulation.networks_[group], rank),
            /*device=*/nullptr,
            Witness(
                c10::make_intrusive<c10d::PrefixStore>(name, store),
                rank,
                program().size,
                name),
            std::make_shared<Statistics>(name, std::vector<double>{}),
            program().settings));
  }
  for (const auto& plan : program().tensors) {
    tensors_.push_back(
        at::empty({plan.counts[0] + plan.counts[1]}, plan.dtype));
    for (size_t part = 0; part < 2; ++part) {
      fill(
          part_of(tensors_.size() - 1, static_cast<Part>(part)),
          plan.values[part][rank]);
    }
  }
  std::vector<size_t> ordinals(program().groups);
  for (size_t place = 0; place < calls_.size(); ++place) {
    prepare(place, ordinals[program().operations[place].group]++);
  }
}

at::Tensor Simulation::Rank::part_of(size_t tensor, Part part) const {
  const auto& counts = program().tensors[tensor].counts;
  switch (part) {
    case Part::First:
      return tensors_[tensor].narrow(0, 0, counts[0]);
    case Part::Second:
      return tensors_[tensor].narrow(0, counts[0], counts[1]);
    default:
      return tensors_[tensor];
  }
}

Collective Simulation::Rank::collective(Call& call, const CallPlan& plan)
    const {
  const Arguments arguments(*engines_[0], kTimeout); // groups are alike
  const auto tensor = part_of(plan.tensor, plan.part);
  call.gathered.emplace_back();
  switch (plan.verb) {
    case Verb::Allreduce:
      return arguments.allreduce(tensor, plan.op);
    case Verb::Reduce:
      return arguments.reduce(tensor, plan.op, plan.root);
    case Verb::Broadcast:
      return arguments.broadcast(tensor, plan.root);
    case Verb::Allgather:
      for (int rank = 0; rank < program().size; ++rank) {
        call.gathered.back().push_back(at::empty_like(tensor));
      }
      return arguments.allgather(call.gathered.back(), tensor);
    default:
      return arguments.barrier();
  }
}

void Simulation::Rank::prepare(size_t place, size_t ordinal) {
  const auto& oddity = program().oddity;
  auto& call = calls_[place];
  call.ordinal = ordinal;
  call.operation = std::make_shared<Operation>();
  const bool is_odd =
      oddity && oddity->operation == place && oddity->rank == rank_;
  for (const auto& plan : program().operations[place].calls) {
    call.operation->collectives.push_back(
        collective(call, is_odd ? oddity->call : plan));
  }
  call.operation->on_done = [this, place](std::exception_ptr error) {
    return conclude(place, std::move(error));
  };
}

std::function<void()> Simulation::Rank::conclude(
    size_t place,
    std::exception_ptr error) {
  const auto& plan = program().operations[place];
  auto& call = calls_[place];
  if (concluded_[plan.group]++ != call.ordinal) {
    die(place, "concluded out of order");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  call.error = std::move(error);
  call.concluded = true;
  changed_.notify_all();
  const Call* last =
      plan.callback_waits ? last_submitted_[plan.group] : nullptr;
  if (last == &call) {
    last = nullptr;
  }
  return [this, &call, last, engine = engines_[plan.group].get()] {
    if (last != nullptr) {
      engine->drive_until_done(*last->operation);
    }
    std::unique_lock<std::mutex> locked(mutex_);
    changed_.wait(
        locked, [last] { return last == nullptr || last->called_back; });
    call.called_back = true;
    changed_.notify_all();
  };
}

void Simulation::Rank::run() {
  Random random(program().seed + 1000 * rank_);
  if (rank_ == program().late_rank) {
    std::this_thread::sleep_for(std::chrono::milliseconds(random.below(10)));
  }
  std::vector<std::thread> threads;
  for (int thread = 0; thread < program().threads; ++thread) {
    threads.emplace_back([this, thread] { run_thread(thread); });
  }
  if (random.chance(50)) { // shut down while the threads still wait
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return left_ == 0; });
  } else {
    for (auto& thread : threads) {
      thread.join();
    }
    threads.clear();
  }
  for (const auto& engine : engines_) {
    engine->shutdown();
  }
  for (size_t place = 0; place < calls_.size(); ++place) {
    if (calls_[place].submitted) {
      check(place);
      if (!calls_[place].called_back) {
        die(place, "shut down before its callback had run");
      }
    }
  }
  for (auto& thread : threads) {
    thread.join();
  }
  engines_.clear();
}

void Simulation::Rank::run_thread(int thread) {
  Random random(program().seed + 1000 * rank_ + 100 * thread + 1);
  std::vector<size_t> outstanding;
  const auto wait_for = [&](size_t last) {
    while (true) {
      std::vector<size_t> due;
      for (const size_t place : outstanding) {
        if (program().operations[place].wait_after[rank_] <= last) {
          due.push_back(place);
        }
      }
      if (due.empty()) {
        return;
      }
      const size_t place = random.pick(due);
      outstanding.erase(
          std::find(outstanding.begin(), outstanding.end(), place));
      place_[thread] = place;
      random.pause(program().pauses);
      wait(place, random);
    }
  };
  for (size_t place = 0; place < calls_.size(); ++place) {
    const auto& plan = program().operations[place];
    if (plan.thread[rank_] != thread) {
      continue;
    }
    place_[thread] = place;
    doing_[thread] = "submitting";
    submit(place, random);
    doing_[thread] = "waiting";
    if (!calls_[place].submitted) {
      continue;
    }
    if (plan.wait[rank_] == Wait::Synchronous) {
      wait(place, random);
    } else if (plan.wait[rank_] != Wait::Never) {
      outstanding.push_back(place);
    }
    wait_for(place);
  }
  wait_for(std::numeric_limits<size_t>::max());
  doing_[thread] = "through";
}

void Simulation::Rank::submit(size_t place, Random& random) {
  const auto& plan = program().operations[place];
  auto& call = calls_[place];
  const auto& [signal, abort] = std::tie(program().signal, program().abort);
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return turn_[plan.group] == call.ordinal; });
  lock.unlock();
  if (signal && signal->to == rank_ && signal->submitted == place) {
    simulation_.await_signal();
  }
  if (abort && abort->rank == rank_ && abort->operation == place) {
    engines_[plan.group]->abort("the program says so");
  }
  random.pause(program().pauses);
  try {
    engines_[plan.group]->submit(
        call.operation, plan.wait[rank_] == Wait::Synchronous);
    call.submitted = true;
  } catch (const std::exception& e) {
    if (!abort) {
      die(place, std::string("submit() threw: ") + e.what());
    }
  }
  lock.lock();
  ++turn_[plan.group];
  --left_;
  if (call.submitted) {
    last_submitted_[plan.group] = &call;
  }
  changed_.notify_all();
}

void Simulation::Rank::wait(size_t place, Random& random) {
  const auto& plan = program().operations[place];
  auto& call = calls_[place];
  auto& engine = *engines_[plan.group];
  switch (plan.wait[rank_]) {
    case Wait::Timed:
      while (!engine.wait_until_done(
          *call.operation,
          Clock::now() + std::chrono::microseconds(random.below(5000)))) {
      }
      break;
    case Wait::Notice: {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return call.concluded; });
      break;
    }
    default:
      engine.drive_until_done(*call.operation);
  }
  check(place);
  const auto& signal = program().signal;
  if (signal && signal->from == rank_ && signal->done == place) {
    simulation_.give_signal();
  }
}

void Simulation::Rank::check(size_t place) {
  const auto& plan = program().operations[place];
  auto& call = calls_[place];
  std::exception_ptr error;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!call.concluded) {
      die(place, "done before it was concluded");
    }
    error = call.error;
  }
  const auto& oddity = program().oddity;
  if (oddity && oddity->operation == place) {
    check_oddity(place, error);
    return;
  }
  if (error) {
    if (!program().abort) {
      die(place, "failed: " + text_of(error));
    }
    return;
  }
  for (size_t index = 0; index < plan.calls.size(); ++index) {
    const auto& [verb, op, root, tensor, part] = plan.calls[index];
    const bool used_again = program().last_use[tensor] != place ||
        std::any_of(plan.calls.begin() + static_cast<ptrdiff_t>(index) + 1,
                    plan.calls.end(),
                    [&](const auto& next) { return next.tensor == tensor; });
    int64_t begin = 0;
    for (const auto half : {Part::First, Part::Second}) {
      const auto& values = plan.results[index][static_cast<size_t>(half)];
      const auto own = part_of(tensor, half);
      if (!used_again && !holds(own, values[rank_])) {
        die(place, "tensor " + std::to_string(tensor) + " is wrong");
      }
      if (part != Part::Whole && part != half) {
        continue;
      }
      for (size_t from = 0; from < call.gathered[index].size(); ++from) {
        const auto& gathered = call.gathered[index][from];
        if (!holds(gathered.narrow(0, begin, own.numel()), values[from])) {
          die(place, "gathered from rank " + std::to_string(from) + ": wrong");
        }
      }
      begin += own.numel();
    }
  }
}

void Simulation::Rank::check_oddity(
    size_t place,
    const std::exception_ptr& error) {
  if (!error) {
    die(place, "not all ranks called it, and this one has not been told");
  }
  const auto& oddity = *program().oddity;
  const auto text = text_of(error);
  for (int rank = 0; rank < program().size; ++rank) {
    const auto& plan = rank == oddity.rank
        ? oddity.call
        : program().operations[place].calls[0];
    Call unused;
    const auto call = collective(unused, plan).signature.describe();
    if (!says_called(text, rank, call)) {
      die(place,
          "the error does not say that rank " + std::to_string(rank) +
              " called " + call + ": " + text);
    }
  }
}

std::string Simulation::Rank::describe() const {
  std::ostringstream out;
  for (size_t thread = 0; thread < doing_.size(); ++thread) {
    const char* const doing = doing_[thread];
    out << "  rank " << rank_ << " thread " << thread << ": "
        << (doing != nullptr ? doing : "not begun") << ' ' << place_[thread]
        << '\n';
  }
  return out.str();
}

void Simulation::Rank::die(size_t place, const std::string& why) {
  simulation_.die(
      "rank " + std::to_string(rank_) + ", operation " + std::to_string(place) +
      ": " + why);
}

Simulation::Simulation(
    uint64_t seed,
    const c10::intrusive_ptr<c10d::Store>& store)
    : program_(seed) {
  for (int group = 0; group < program_.groups; ++group) {
    networks_.push_back(
        std::make_shared<Network>(
            program_.size,
            seed + group,
            program_.pauses,
            Hosts(program_.hosts)));
  }
  for (int rank = 0; rank < program_.size; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(*this, rank, store));
  }
}

Simulation::~Simulation() = default;

void Simulation::run() {
  std::vector<std::thread> threads;
  for (const auto& rank : ranks_) {
    threads.emplace_back([&rank] { rank->run(); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (const auto& network : networks_) {
    const auto complaint = network->complaint();
    if (!complaint.empty()) {
      die(complaint);
    }
    if (!program_.abort) {
      compare_frames(*network);
    }
  }
}

void Simulation::compare_frames(Network& network) {
  const auto frames = network.frames();
  // What they have not agreed on they have alike where they have as much ready.
  const auto same = [&](const FrameHeader& a, const FrameHeader& b) {
    return a.seq == b.seq &&
        (program_.oddity ||
         (a.agreed == b.agreed && (a.tail != b.tail || a.batch == b.batch)));
  };
  for (const auto& of_rank : frames) {
    if (!std::equal(
            of_rank.begin(),
            of_rank.end(),
            frames[0].begin(),
            frames[0].end(),
            same)) {
      die("the ranks sent different frames");
    }
  }
}

void Simulation::await_signal() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return signalled_; });
}

void Simulation::give_signal() {
  std::lock_guard<std::mutex> lock(mutex_);
  signalled_ = true;
  changed_.notify_all();
}

void Simulation::die(const std::string& why) {
  static std::mutex dying; // never released: one report is enough
  dying.lock();
  std::cerr << "seed " << program_.seed << ": " << why << '\n'
            << program_.describe();
  for (const auto& rank : ranks_) {
    std::cerr << rank->describe();
  }
  for (const auto& network : networks_) {
    std::cerr << "  in the mailboxes of a group:\n" << network->describe();
  }
  std::cerr.flush();
  std::_Exit(1);
}

} // namespace hvd::model
