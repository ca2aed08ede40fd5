#include "engine/engine.h"

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

// While its callers submit one thing after the other and none waits, a rank
// holds small collectives back, for the first frame to tell how many there are.
constexpr std::chrono::microseconds kPause{50};
constexpr std::chrono::milliseconds kLongestHold{1};

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

/// The track whose background thread this is, if any.
thread_local const Track* background_of = nullptr;

} // namespace

template <typename Body>
std::thread Engine::make_thread(Body body) {
  return std::thread([self = shared_from_this(),
                      body = std::move(body)]() mutable { body(*self); });
}

Engine::Engine(
    std::unique_ptr<Transport> transport,
    Witness witness,
    std::shared_ptr<Statistics> statistics,
    const Settings& settings)
    : transport_(std::move(transport)),
      statistics_(std::move(statistics)),
      settings_(settings),
      fork_depth_(fork_depth()),
      witness_(std::move(witness)),
      frames_(*transport_, agreement_, *statistics_, settings.limits),
      large_(*transport_, agreement_),
      tracks_{&frames_, &large_} {}

Track& Engine::track_of(const Collective& collective) {
  const bool framed = transport_->size() > 1 &&
      (settings_.check || is_small(collective, settings_.limits));
  return framed ? static_cast<Track&>(frames_) : large_;
}

bool Engine::is_held(const Track& track) const {
  return !failing_ && !track.starting && track.started.empty() &&
      !track.queue.empty();
}

bool Engine::is_idle(const Track& track) const {
  return failing_ || track.finishing || track.started.empty();
}

void Engine::submit(const std::shared_ptr<Operation>& operation) {
  const auto& first = operation->collectives[0].signature;
  if (forked()) {
    refuse(first.describe());
  }
  Lock lock(mutex_);
  if (error_ || closed_) {
    refuse(first.describe());
  }
  if (submitted_ == 0 && transport_->size() > 1) {
    threads_.push_back(make_thread([](Engine& engine) { engine.watch(); }));
  }
  const auto now = Clock::now();
  operation->remaining = operation->collectives.size();
  for (auto& collective : operation->collectives) {
    collective.seq = submitted_++;
    waiting_.push_back(
        {operation, &collective, agreement_.enlist(collective), now});
    pending_.push_back({operation, &collective, false, nullptr, {}});
  }
  admit();
  Aftermath aftermath;
  ++submitting_;
  start_ready(lock, large_, aftermath);
  --submitting_;
  conclude(lock, aftermath);
}

void Engine::drive_until_done(const Operation& operation) {
  const auto begin = Clock::now();
  Lock lock(mutex_);
  start_all(lock);
  while (!operation.done) {
    // Only what the operation needs: what comes after it, or is on the other
    // track, may depend on what this thread does next.
    const uint64_t last = operation.collectives.back().seq;
    const auto driven = std::find_if(
        operation.collectives.begin(),
        operation.collectives.end(),
        [&](const auto& part) {
          const Track& track = track_of(part);
          return !is_idle(track) && track.started.front().first_seq() <= last;
        });
    if (driven == operation.collectives.end()) {
      progress_.wait(lock);
    } else {
      work_off(lock, track_of(*driven));
    }
  }
  count_waiting(begin);
}

bool Engine::wait_until_done(const Operation& operation, Deadline deadline) {
  run_in_background(operation);
  const auto begin = Clock::now();
  Lock lock(mutex_);
  start_all(lock);
  const bool done =
      progress_.wait_until(lock, deadline, [&] { return operation.done; });
  count_waiting(begin);
  return done;
}

void Engine::count_waiting(Deadline begin) {
  statistics_->add_waiting(
      std::chrono::duration<double>(Clock::now() - begin).count());
}

void Engine::run_in_background(const Operation& operation) {
  Lock lock(mutex_);
  for (const auto& collective : operation.collectives) {
    Track& track = track_of(collective);
    ensure_background_thread(track);
    if (track.sleeping > 0) { // else it will look by itself
      track.work_ready.notify_one();
    }
  }
  last_submitted_ = Clock::now();
}

void Engine::start_all(Lock& lock) {
  Aftermath aftermath;
  for (auto* track : tracks_) {
    start_ready(lock, *track, aftermath);
  }
  conclude(lock, aftermath);
}

void Engine::admit() {
  while (!waiting_.empty() && memory_.take(*waiting_.front().collective)) {
    track_of(*waiting_.front().collective)
        .queue.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Engine::start_ready(Lock& lock, Track& track, Aftermath& aftermath) {
  if (track.starting) {
    return; // that thread will see what this one has queued
  }
  track.starting = true;
  while (!failing_ && !track.queue.empty()) {
    Batch batch = track.next(submitted_ - waiting_.size());
    if (batch.items.empty()) {
      break;
    }
    batch.times.batch = batches_++;
    std::string error;
    lock.unlock();
    try {
      start(track, batch);
    } catch (const std::exception& e) {
      error = e.what();
    }
    lock.lock();
    track.started.push_back(std::move(batch));
    if (!error.empty()) {
      give_up(lock, track.started.back(), error);
    }
  }
  track.starting = false;
  fail_pending(lock, aftermath);
}

void Engine::start(Track& track, Batch& batch) {
  // Results are data, whoever drives: autograd must not see them written.
  at::AutoDispatchBelowADInplaceOrView untracked;
  auto timeout = batch.items[0].collective->timeout;
  for (const auto& item : batch.items) {
    timeout = std::min(timeout, item.collective->timeout);
  }
  batch.times.started = Clock::now();
  batch.deadline = batch.times.started + timeout;
  track.start(batch);
  batch.times.packed = Clock::now();
}

bool Engine::finish(Track& track, Batch& batch) {
  // Results are data, whoever drives: autograd must not see them written.
  at::AutoDispatchBelowADInplaceOrView untracked;
  if (!track.finish(batch)) {
    return false;
  }
  for (const auto& item : batch.items) {
    for (const auto& [to, from] : item.collective->copy_back) {
      to.copy_(from);
    }
  }
  batch.times.finished = Clock::now();
  return true;
}

void Engine::finish_front(Lock& lock, Track& track, Aftermath& aftermath) {
  track.finishing = true;
  Batch& front = track.started.front(); // stays put: others push at the back
  std::exception_ptr error;
  std::string failure;
  bool finished = true;
  lock.unlock();
  try {
    finished = finish(track, front);
  } catch (const Mismatch& e) {
    error = backend_error(
        "hvd: on rank " + std::to_string(transport_->rank()) + ": " + e.what());
  } catch (const std::exception& e) {
    failure = e.what();
  }
  lock.lock();
  if (!failure.empty()) {
    give_up(lock, front, failure);
  } else if (!failing_) {
    Batch batch = std::move(front);
    track.started.pop_front();
    if (!finished) {
      track.queue.insert(
          track.queue.begin(), batch.items.begin(), batch.items.end());
    } else {
      if (!error) {
        record(batch, &track == &frames_);
      }
      for (const auto& item : batch.items) {
        memory_.give_back(*item.collective);
        auto& pending = pending_[item.collective->seq - retired_];
        pending.finished = true;
        pending.error = error;
        pending.times = batch.times;
        pending.times.submitted = item.submitted;
      }
      admit();
    }
    aftermath.batches.push_back(std::move(batch));
    for (auto* each : tracks_) {
      start_ready(lock, *each, aftermath);
    }
    retire(lock, aftermath);
  }
  track.finishing = false;
  fail_pending(lock, aftermath);
}

void Engine::record(const Batch& batch, bool framed) {
  Response response;
  response.framed = framed;
  response.tensors = batch.items.size();
  for (const auto& item : batch.items) {
    response.bytes += tensor_bytes(*item.collective);
  }
  response.seconds =
      std::chrono::duration<double>(batch.times.finished - batch.times.started)
          .count();
  statistics_->add(response);
  statistics_->set_wire_bytes(transport_->sent_bytes());
}

void Engine::retire(Lock& lock, Aftermath& aftermath) {
  if (retiring_) {
    return; // that thread will see what this one has finished
  }
  retiring_ = true;
  while (!pending_.empty() && pending_.front().finished) {
    std::vector<Pending> finished;
    while (!pending_.empty() && pending_.front().finished) {
      finished.push_back(std::move(pending_.front()));
      pending_.pop_front();
      ++retired_;
    }
    std::vector<Operation*> done;
    lock.unlock();
    for (auto& part : finished) {
      if (Timeline::instance().is_on() && !part.error) {
        Timeline::instance().add(
            witness_.group(), transport_->name(), *part.collective, part.times);
      }
      Operation& operation = *part.operation;
      if (part.error && !operation.error) {
        operation.error = part.error;
      }
      if (--operation.remaining == 0) {
        // Taken out, for it may hold what holds the operation.
        const auto on_done = std::exchange(operation.on_done, nullptr);
        if (auto continuation = on_done(operation.error)) {
          aftermath.continuations.push_back(std::move(continuation));
        }
        done.push_back(&operation);
      }
      aftermath.operations.push_back(std::move(part.operation));
    }
    lock.lock();
    for (auto* operation : done) {
      operation->done = true;
    }
    progress_.notify_all();
  }
  retiring_ = false;
}

void Engine::work_off(Lock& lock, Track& track) {
  Aftermath aftermath;
  finish_front(lock, track, aftermath);
  progress_.notify_all();
  if (!track.started.empty()) {
    track.work_ready.notify_one();
  }
  conclude(lock, aftermath);
}

void Engine::conclude(Lock& lock, Aftermath& aftermath) {
  if (aftermath.operations.empty() && aftermath.batches.empty()) {
    return;
  }
  const bool runs_user_code = !aftermath.continuations.empty();
  if (runs_user_code) {
    // They may wait for operations that only another thread can drive then.
    for (auto* track : tracks_) {
      track->free_threads -= background_of == track;
      ensure_background_thread(*track);
    }
  }
  lock.unlock();
  for (auto& continuation : aftermath.continuations) {
    continuation();
  }
  aftermath.batches.clear();
  aftermath.operations.clear();
  lock.lock();
  if (runs_user_code) {
    for (auto* track : tracks_) {
      track->free_threads += background_of == track;
    }
  }
}

void Engine::give_up(Lock& lock, const Batch& batch, const std::string& error) {
  if (failing_) {
    return; // torn down with the group: the cause is elsewhere
  }
  failing_ = true;
  lock.unlock();
  transport_->abort();
  const std::string message = explain(batch, error);
  lock.lock();
  fail(message);
}

void Engine::fail(const std::string& message) {
  failing_ = true;
  if (!error_) {
    error_ = backend_error(message);
    failure_ = message;
  }
}

void Engine::fail_pending(Lock& lock, Aftermath& aftermath) {
  const auto held = [](const Track* track) {
    return track->starting || track->finishing;
  };
  if (!error_ || std::any_of(tracks_.begin(), tracks_.end(), held)) {
    return; // whoever holds a role still uses a batch, and calls this later
  }
  for (auto* track : tracks_) {
    std::move(
        track->started.begin(),
        track->started.end(),
        std::back_inserter(aftermath.batches));
    track->started.clear();
    track->queue.clear(); // their operations are in `pending_`
  }
  waiting_.clear();
  for (auto& part : pending_) {
    if (!part.finished) {
      part.finished = true;
      part.error = error_;
    }
  }
  retire(lock, aftermath);
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
    const auto is_empty = [](const Track* track) {
      return track->started.empty() && track->queue.empty();
    };
    while (!waiting_.empty() ||
           !std::all_of(tracks_.begin(), tracks_.end(), is_empty)) {
      const auto driven = std::find_if(
          tracks_.begin(), tracks_.end(), [this](const auto* track) {
            return !is_idle(*track);
          });
      if (driven == tracks_.end()) {
        progress_.wait(lock);
      } else {
        work_off(lock, **driven);
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
  for (auto* track : tracks_) {
    track->work_ready.notify_all();
  }
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

std::string Engine::explain(const Batch& batch, const std::string& error) {
  const Collective& collective = *batch.items[0].collective;
  std::ostringstream out;
  out << "hvd: " << collective.signature.describe() << ", number "
      << collective.seq << " in process group " << witness_.group()
      << ", failed on rank " << transport_->rank() << ": ";
  if (Clock::now() >= batch.deadline) {
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

void Engine::ensure_background_thread(Track& track) {
  if (track.free_threads == 0 && !stop_) {
    ++track.free_threads;
    threads_.push_back(
        make_thread([&track](Engine& engine) { engine.background(track); }));
  }
}

void Engine::background(Track& track) {
  background_of = &track;
  Lock lock(mutex_);
  while (true) {
    ++track.sleeping;
    track.work_ready.wait(
        lock, [&] { return stop_ || is_held(track) || !is_idle(track); });
    --track.sleeping;
    if (stop_) {
      return;
    }
    if (is_held(track)) {
      hold(lock, track);
      start_all(lock);
    } else {
      work_off(lock, track);
    }
  }
}

void Engine::hold(Lock& lock, Track& track) {
  const auto latest = Clock::now() + kLongestHold;
  while (is_held(track) && !stop_) {
    const auto now = Clock::now();
    const auto pause = submitting_ > 0 ? now : last_submitted_;
    const auto until = std::min(latest, pause + kPause);
    if (now >= until) {
      return;
    }
    track.work_ready.wait_until(lock, until);
  }
}

const Collective* Engine::oldest_started() const {
  const Collective* oldest = nullptr;
  for (const auto* track : tracks_) {
    if (!track->started.empty()) {
      const auto* first = track->started.front().items[0].collective;
      oldest = oldest != nullptr && oldest->seq < first->seq ? oldest : first;
    }
  }
  return oldest;
}

void Engine::watch() {
  constexpr auto kNowhere = std::numeric_limits<uint64_t>::max();
  uint64_t stuck_at = kNowhere;
  auto interval = kFirstLook;
  Lock lock(mutex_);
  while (!stopped_.wait_for(lock, interval, [this] { return stop_; })) {
    const Collective* const oldest = oldest_started();
    const uint64_t at = oldest != nullptr ? oldest->seq : kNowhere;
    if (at == kNowhere || at != stuck_at) {
      stuck_at = at;
      interval = kFirstLook;
      continue;
    }
    interval = std::min(interval * 2, kLongestLook);
    const Witness::Place place{at, oldest->signature};
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
