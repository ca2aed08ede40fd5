#include "engine/engine.h"

#include "collectives/contribution.h"
#include "common/error.h"
#include "common/fork.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <sstream>

namespace hvd {

namespace {

// A frame carries what all ranks contribute to everyone, so its share of the
// wire grows with the group; up to here that is still faster than two stages.
constexpr int64_t kFrameBytesPerRank = 16 * 1024;
constexpr int64_t kMaxFrameBytes = 64 * 1024;

// Two large operations in flight hide the gaps between them.
constexpr size_t kLargeInFlight = 2;

// How long an operation is stuck before the ranks compare where they are.
constexpr std::chrono::seconds kFirstLook{1};
constexpr std::chrono::seconds kLongestLook{60};
// How long an error message waits for the word of the other ranks.
constexpr std::chrono::seconds kPatience{2};

void join_all(std::vector<std::thread> threads) {
  for (auto& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach(); // called from a callback; the thread keeps the engine
    } else {
      thread.join();
    }
  }
}

/// The engine whose background thread this is, if any.
thread_local const Engine* background_of = nullptr;

} // namespace

template <typename Body>
std::thread Engine::make_thread(Body body) {
  return std::thread([self = shared_from_this(),
                      body = std::move(body)]() mutable { body(*self); });
}

Engine::Engine(std::unique_ptr<Transport> transport, Witness witness)
    : transport_(std::move(transport)),
      fork_depth_(fork_depth()),
      witness_(std::move(witness)) {}

void Engine::submit(const std::shared_ptr<Operation>& operation) {
  const auto& first = operation->collectives[0].signature;
  if (forked()) {
    refuse(first.describe());
  }
  Aftermath aftermath;
  Lock lock(mutex_);
  if (error_ || closed_) {
    refuse(first.describe());
  }
  operation->remaining = operation->collectives.size();
  for (auto& collective : operation->collectives) {
    collective.seq = submitted_++;
    queue_.push_back({operation, &collective, nullptr, {}});
  }
  if (submitted_ == operation->collectives.size() && transport_->size() > 1) {
    threads_.push_back(make_thread([](Engine& engine) { engine.watch(); }));
  }
  start_ready(lock, aftermath);
  conclude(lock, aftermath);
}

void Engine::drive_until_done(const Operation& operation) {
  Lock lock(mutex_);
  while (!operation.done) {
    if (finishing_ || started_.empty()) {
      progress_.wait(lock);
    } else {
      work_off(lock);
    }
  }
}

bool Engine::wait_until_done(const Operation& operation, Deadline deadline) {
  run_in_background();
  Lock lock(mutex_);
  return progress_.wait_until(lock, deadline, [&] { return operation.done; });
}

void Engine::run_in_background() {
  Lock lock(mutex_);
  ensure_background_thread();
  work_ready_.notify_one();
}

bool Engine::is_small(const Collective& collective) const {
  const int64_t bytes = contribution_bytes(collective);
  const int64_t limit =
      std::min(kFrameBytesPerRank * transport_->size(), kMaxFrameBytes);
  return transport_->size() > 1 && bytes >= 0 && bytes <= limit;
}

bool Engine::has_room(const Collective& collective) const {
  return is_small(collective) ? small_started_ == 0
                              : large_started_ < kLargeInFlight;
}

void Engine::start_ready(Lock& lock, Aftermath& aftermath) {
  if (starting_) {
    return; // that thread will see what this one has queued
  }
  starting_ = true;
  while (!error_ && !queue_.empty() && has_room(*queue_.front().collective)) {
    Item item = std::move(queue_.front());
    queue_.pop_front();
    ++(is_small(*item.collective) ? small_started_ : large_started_);
    const uint64_t tail = submitted_ - 1;
    lock.unlock();
    std::string failure;
    try {
      start(item, tail);
    } catch (const std::exception& e) {
      transport_->abort();
      failure = explain(item, e.what());
    }
    lock.lock();
    started_.push_back(std::move(item));
    if (!failure.empty()) {
      fail(failure);
    }
  }
  starting_ = false;
  fail_pending(lock, aftermath);
}

void Engine::start(Item& item, uint64_t tail) {
  // Results are data, whoever drives: autograd must not see them written.
  at::AutoDispatchBelowADInplaceOrView untracked;
  const Collective& collective = *item.collective;
  item.deadline = Clock::now() + collective.timeout;
  if (is_small(collective)) {
    if (!frames_) {
      frames_.emplace(*transport_, sizeof(FrameHeader) + kMaxFrameBytes);
    }
    FrameHeader header = agreement_.header(collective, tail);
    header.payload_bytes =
        write_contribution(collective, frames_->outgoing() + sizeof(header));
    std::memcpy(frames_->outgoing(), &header, sizeof(header));
    frames_->post(static_cast<int64_t>(sizeof(header)) + header.payload_bytes);
  } else {
    item.running = hvd::start(collective, *transport_);
  }
  agreement_.start(collective);
}

void Engine::finish(Item& item) {
  // Results are data, whoever drives: autograd must not see them written.
  at::AutoDispatchBelowADInplaceOrView untracked;
  const Collective& collective = *item.collective;
  if (item.running) {
    item.running->finish(item.deadline);
  } else {
    auto frames = frames_->collect(item.deadline);
    agreement_.check(collective, frames);
    for (auto& frame : frames) {
      frame += sizeof(FrameHeader);
    }
    apply_contributions(collective, transport_->rank(), frames);
  }
  for (const auto& [to, from] : collective.copy_back) {
    to.copy_(from);
  }
}

void Engine::finish_front(Lock& lock, Aftermath& aftermath) {
  finishing_ = true;
  Item& front = started_.front(); // stays put: others only push at the back
  std::exception_ptr error;
  std::string failure;
  if (!error_) {
    lock.unlock();
    try {
      finish(front);
    } catch (const Mismatch& e) {
      error = backend_error(
          "hvd: on rank " + std::to_string(transport_->rank()) + ": " +
          e.what());
    } catch (const std::exception& e) {
      transport_->abort();
      failure = explain(front, e.what());
    }
    lock.lock();
  }
  if (!failure.empty()) {
    fail(failure);
  }
  if (!error_) {
    std::vector<Item> finished;
    finished.push_back(std::move(front));
    started_.pop_front();
    --(finished[0].running ? large_started_ : small_started_);
    start_ready(lock, aftermath);
    settle(lock, std::move(finished), error, aftermath);
  }
  finishing_ = false;
  fail_pending(lock, aftermath);
}

void Engine::fail_pending(Lock& lock, Aftermath& aftermath) {
  if (!error_ || starting_ || finishing_) {
    return; // whoever holds a role still uses an item, and calls this later
  }
  std::vector<Item> items;
  for (auto* pending : {&started_, &queue_}) {
    std::move(pending->begin(), pending->end(), std::back_inserter(items));
    pending->clear();
  }
  small_started_ = large_started_ = 0;
  settle(lock, std::move(items), error_, aftermath);
}

void Engine::settle(
    Lock& lock,
    std::vector<Item> items,
    const std::exception_ptr& error,
    Aftermath& aftermath) {
  // The items are this thread's alone by now, and so are their operations:
  // earlier parts were settled before, under the same role.
  lock.unlock();
  std::vector<Operation*> done;
  for (auto& item : items) {
    Operation& operation = *item.operation;
    if (error && !operation.error) {
      operation.error = error;
    }
    if (--operation.remaining == 0) {
      // Taken out, for it may hold what holds the operation.
      const auto on_done = std::exchange(operation.on_done, nullptr);
      if (auto continuation = on_done(operation.error)) {
        aftermath.continuations.push_back(std::move(continuation));
      }
      done.push_back(&operation);
    }
    aftermath.items.push_back(std::move(item));
  }
  lock.lock();
  for (auto* operation : done) {
    operation->done = true;
  }
  progress_.notify_all();
}

void Engine::work_off(Lock& lock) {
  Aftermath aftermath;
  finish_front(lock, aftermath);
  progress_.notify_all();
  if (!started_.empty()) {
    work_ready_.notify_one();
  }
  conclude(lock, aftermath);
}

void Engine::conclude(Lock& lock, Aftermath& aftermath) {
  const bool in_background = background_of == this;
  if (!aftermath.continuations.empty()) {
    // They may wait for operations that only another thread can drive then.
    free_threads_ -= in_background;
    ensure_background_thread();
  }
  lock.unlock();
  for (auto& continuation : aftermath.continuations) {
    continuation();
  }
  aftermath.items.clear();
  lock.lock();
  if (!aftermath.continuations.empty()) {
    free_threads_ += in_background;
  }
}

void Engine::fail(const std::string& message) {
  if (!error_) {
    error_ = backend_error(message);
    failure_ = message;
  }
}

void Engine::run_apart(std::function<void()> body) {
  Lock lock(mutex_);
  if (stop_) {
    return;
  }
  join_all(std::exchange(threads_over_, {}));
  threads_apart_.push_back(
      make_thread([body = std::move(body)](Engine& engine) mutable {
        std::exchange(body, nullptr)();
        Lock relock(engine.mutex_);
        auto& apart = engine.threads_apart_;
        const auto self =
            std::find_if(apart.begin(), apart.end(), [](const auto& thread) {
              return thread.get_id() == std::this_thread::get_id();
            });
        if (self != apart.end()) { // shutdown() may have taken it
          engine.threads_over_.push_back(std::move(*self));
          apart.erase(self);
        }
      }));
}

void Engine::shutdown() noexcept {
  if (forked()) {
    return;
  }
  std::vector<std::thread> threads;
  {
    Lock lock(mutex_);
    closed_ = true;
    while (!started_.empty() || !queue_.empty()) {
      if (finishing_ || started_.empty()) {
        progress_.wait(lock);
      } else {
        work_off(lock);
      }
    }
    stop_ = true;
    const bool some_wait_apart = !threads_apart_.empty();
    for (auto* some : {&threads_, &threads_apart_, &threads_over_}) {
      std::move(some->begin(), some->end(), std::back_inserter(threads));
      some->clear();
    }
    if (some_wait_apart) {
      lock.unlock();
      transport_->abort(); // nothing else ends a receive that nobody serves
    }
  }
  work_ready_.notify_all();
  stopped_.notify_all();
  join_all(std::move(threads));
}

void Engine::abort(const std::string& reason) noexcept {
  if (forked()) {
    return;
  }
  Aftermath aftermath;
  Lock lock(mutex_);
  if (!error_) {
    fail(reason);
    lock.unlock();
    transport_->abort();
    lock.lock();
  }
  fail_pending(lock, aftermath);
  conclude(lock, aftermath);
}

bool Engine::failed() {
  Lock lock(mutex_);
  return error_ != nullptr;
}

bool Engine::forked() const {
  return fork_depth() != fork_depth_;
}

uint64_t Engine::submitted() {
  Lock lock(mutex_);
  return submitted_;
}

void Engine::check_usable(const char* call) {
  if (forked()) {
    refuse(call); // its lock may be held by a thread that does not exist here
  }
  Lock lock(mutex_);
  if (error_ || closed_) {
    refuse(call);
  }
}

void Engine::refuse(const std::string& call) const {
  TORCH_CHECK(
      !forked(),
      "hvd: ",
      call,
      ": this process was forked after the process group was made and cannot "
      "use it; call init_process_group in the child, or start it with the "
      "spawn "
      "or forkserver method");
  if (error_) {
    std::rethrow_exception(backend_error(
        "hvd: " + call + " on process group " + witness_.group() +
        ", which has failed. " + failure_));
  }
  TORCH_CHECK(
      false,
      "hvd: ",
      call,
      ": process group ",
      witness_.group(),
      " has been shut down");
}

std::string Engine::explain(const Item& item, const std::string& error) {
  const Collective& collective = *item.collective;
  std::ostringstream out;
  out << "hvd: " << collective.signature.describe() << ", number "
      << collective.seq << " in process group " << witness_.group()
      << ", failed on rank " << transport_->rank() << ": ";
  if (Clock::now() >= item.deadline) {
    out << "timed out after " << collective.timeout.count() << " ms. ";
  }
  std::lock_guard<std::mutex> guard(witness_mutex_);
  const Witness::Place place{collective.seq, collective.signature};
  witness_.tell(place);
  const auto places = witness_.ask(kPatience);
  if (place.differs(places)) {
    out << "the ranks called different collectives";
  } else {
    out << error;
  }
  out << ". Where the ranks were: " << witness_.report(places);
  return out.str();
}

void Engine::ensure_background_thread() {
  if (free_threads_ == 0 && !stop_) {
    ++free_threads_;
    threads_.push_back(
        make_thread([](Engine& engine) { engine.background(); }));
  }
}

void Engine::background() {
  background_of = this;
  Lock lock(mutex_);
  const auto has_work = [this] { return !finishing_ && !started_.empty(); };
  while (true) {
    work_ready_.wait(lock, [&] { return stop_ || has_work(); });
    if (stop_) {
      return;
    }
    work_off(lock);
  }
}

void Engine::watch() {
  constexpr auto kNowhere = std::numeric_limits<uint64_t>::max();
  uint64_t stuck_at = kNowhere;
  auto interval = kFirstLook;
  Lock lock(mutex_);
  while (!stopped_.wait_for(lock, interval, [this] { return stop_; })) {
    const uint64_t at =
        started_.empty() ? kNowhere : started_.front().collective->seq;
    if (at == kNowhere || at != stuck_at) {
      stuck_at = at;
      interval = kFirstLook;
      continue;
    }
    interval = std::min(interval * 2, kLongestLook);
    const Witness::Place place{at, started_.front().collective->signature};
    lock.unlock();
    if (differs_elsewhere(place)) {
      // Whoever waits for the operation finds it failed, here and on every
      // other rank, and explains why.
      transport_->abort();
    }
    lock.lock();
  }
}

bool Engine::differs_elsewhere(const Witness::Place& place) {
  std::lock_guard<std::mutex> guard(witness_mutex_);
  witness_.tell(place);
  return place.differs(witness_.ask(std::chrono::milliseconds(0)));
}

} // namespace hvd
