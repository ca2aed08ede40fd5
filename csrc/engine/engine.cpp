#include "engine/engine.h"

#include "collectives/stand_ins.h"
#include "common/error.h"
#include "common/fork.h"
#include "common/neutral_thread.h"

#include <algorithm>
#include <iterator>
#include <optional>

namespace hvd {

namespace {

/// In the order in which they are to be started: what is done with its memory
/// once it has started, as on a device, goes before those that may wait for it.
std::vector<Track*> tracks(Track* on_device, Track* frames, Track* large) {
  std::vector<Track*> all{frames, large};
  if (on_device != nullptr) {
    all.insert(all.begin(), on_device);
  }
  return all;
}

/// On a device only its streams know what came of a sum.
bool feeds_back_on_host(const Collective& collective) {
  return collective.residual && !collective.device_call;
}

} // namespace

Engine::Engine(
    std::unique_ptr<Transport> transport,
    std::unique_ptr<DeviceTransport> device,
    Witness witness,
    std::shared_ptr<Statistics> statistics,
    const Settings& settings)
    : transport_(std::move(transport)),
      device_(std::move(device)),
      statistics_(std::move(statistics)),
      settings_(settings),
      fork_depth_(fork_depth()),
      witness_(std::move(witness)),
      frames_(*transport_, agreement_, *statistics_, settings.limits),
      large_(*transport_, agreement_, settings.limits),
      on_device_(*transport_, device_.get(), settings.limits, settings.check),
      tracks_(tracks(device_ ? &on_device_ : nullptr, &frames_, &large_)) {
  statistics_->follow(transport_.get());
}

Engine::~Engine() {
  statistics_->follow(nullptr);
}

Track& Engine::track_of(const Collective& collective) {
  if (collective.device_call) {
    return on_device_;
  }
  const bool framed = transport_->size() > 1 &&
      (settings_.check || is_small(collective, settings_.limits));
  return framed ? static_cast<Track&>(frames_) : large_;
}

bool Engine::takes_in_place(
    const Collective& collective,
    c10::DeviceType device) const {
  // Sums are made on the host, and there frames are.
  return transport_->takes_memory_of(device) &&
      only_moves(collective.signature.verb) &&
      !is_small(collective, settings_.limits);
}

uint64_t Engine::enlist(const Collective& collective) {
  return collective.device_call ? on_device_.enlist(collective)
                                : agreement_.enlist(collective);
}

bool Engine::is_held(const Track& track) const {
  return !failing_ && !track.starting && track.started.empty() &&
      !track.queue.empty();
}

bool Engine::is_idle(const Track& track) const {
  return failing_ || track.finishing || track.started.empty();
}

bool Engine::is_finished(const Collective& collective) const {
  return collective.seq < retired_ ||
      pending_[collective.seq - retired_].finished;
}

void Engine::submit(
    const std::shared_ptr<Operation>& operation,
    bool caller_waits) {
  Lock lock(mutex_, std::defer_lock);
  try {
    enqueue(lock, operation, caller_waits);
  } catch (...) {
    operation->on_done = nullptr; // which may keep who keeps the operation
    throw;
  }
  admit();
  Aftermath aftermath;
  ++submitting_;
  start_ready(lock, on_device_, aftermath);
  if (!operation->collectives[0].on_device) { // which would have to be awaited
    start_ready(lock, large_, aftermath);
  }
  --submitting_;
  conclude(lock, aftermath);
  if (!caller_waits) {
    // What others wait for may have been started.
    for (auto* track : tracks_) {
      if ((is_held(*track) || !is_idle(*track)) && track->sleeping > 0 &&
          track->napping == 0) {
        track->work_ready.notify_one();
      }
    }
    last_submitted_ = Clock::now();
    caller_ = ThreadClock();
  }
}

void Engine::enqueue(
    Lock& lock,
    const std::shared_ptr<Operation>& operation,
    bool caller_waits) {
  const auto& first = operation->collectives[0].signature;
  if (forked()) {
    refuse(first.describe());
  }
  lock.lock();
  if (operation->collectives[0].device_call &&
      !(waiting_.empty() && on_device_.launches_next())) {
    lock.unlock(); // for it may take until the device has room
    for (const auto& collective : operation->collectives) {
      collective.device_call->mark_ready(); // another thread may launch it
    }
    lock.lock();
  }
  if (error_ || closed_) {
    refuse(first.describe());
  }
  ensure_watchdog();
  if (!caller_waits) {
    for (const auto& collective : operation->collectives) {
      ensure_background_thread(track_of(collective));
    }
  }
  const auto now = Clock::now();
  operation->remaining = operation->collectives.size();
  if (!in_continuation_) {
    operation->caller.emplace();
  }
  for (auto& collective : operation->collectives) {
    collective.seq = submitted_++;
    collective.bytes = tensor_bytes(collective);
    last_called_ = collective.signature;
    if (collective.signature.verb == Verb::Alltoall) {
      last_splits_ = Witness::Splits::of(collective);
    }
    if (collective.signature.codec.error_feedback) {
      error_feedback_.enlist(collective);
    }
    waiting_.push_back({operation, &collective, enlist(collective), now});
    pending_.push_back({operation, &collective, false, nullptr, {}});
  }
}

void Engine::drive_until_done(const Operation& operation) {
  const auto call = waiting();
  Lock lock(mutex_);
  // Again each time round: others let in what this thread may have to start.
  for (start_all(lock, &operation); !operation.done;
       start_all(lock, &operation)) {
    // Only up to where the operation is: all else may wait for what another
    // rank calls once it hears, by whatever means, that this one is done.
    const auto driven = std::find_if(
        operation.collectives.begin(),
        operation.collectives.end(),
        [&](const auto& part) {
          return !is_finished(part) && !is_idle(track_of(part));
        });
    if (driven == operation.collectives.end()) {
      wake_sleepers();
      progress_.wait(lock);
    } else {
      Track& track = track_of(*driven);
      wake_sleepers(&track);
      work_off(lock, track);
    }
  }
  wake_sleepers();
}

bool Engine::wait_until_done(const Operation& operation, Deadline deadline) {
  const auto call = waiting();
  Lock lock(mutex_);
  start_all(lock);
  wake_sleepers();
  return progress_.wait_until(lock, deadline, [&] { return operation.done; });
}

WaitingTime::Call Engine::waiting() {
  return WaitingTime::Call(statistics_->waiting());
}

void Engine::future_asked() {
  statistics_->waiting().ask(/*by_engine=*/in_continuation_);
}

void Engine::future_answered() {
  statistics_->waiting().answer();
}

void Engine::message_called() {
  Lock lock(mutex_);
  ensure_watchdog();
  statistics_->add_message();
}

Engine::MessageWait::MessageWait(Engine& engine, const MessageCall& call)
    : engine_(engine), waiting_(engine.waiting()) {
  Lock lock(engine_.mutex_);
  number_ = ++engine_.messages_waited_;
  engine_.messages_.push_back({call, number_});
}

Engine::MessageWait::~MessageWait() {
  Lock lock(engine_.mutex_);
  std::erase_if(engine_.messages_, [this](const auto& message) {
    return message.number == number_;
  });
}

void Engine::message_done(
    const std::string& name,
    int64_t bytes,
    Deadline submitted) {
  if (Timeline::instance().is_on()) {
    Timeline::instance().add_message(
        witness_.group(), transport_->name(), name, bytes, submitted);
    Timeline::instance().write();
  }
}

void Engine::start_all(Lock& lock, const Operation* own) {
  Aftermath aftermath;
  for (auto* track : tracks_) {
    start_ready(lock, *track, aftermath);
  }
  conclude(lock, aftermath);
  for (auto* track : tracks_) {
    if (track->queue.empty() || track->queue.front().operation.get() != own) {
      continue;
    }
    if (waits_for_device(*track->queue.front().collective)) {
      ensure_continuing(); // this thread may be busy for long
      wake_sleepers();
    }
    start_ready(lock, *track, aftermath, own);
    conclude(lock, aftermath);
  }
}

void Engine::admit() {
  while (!waiting_.empty() && memory_.take(*waiting_.front().collective)) {
    track_of(*waiting_.front().collective)
        .queue.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Engine::start_ready(
    Lock& lock,
    Track& track,
    Aftermath& aftermath,
    const Operation* own) {
  if (track.starting) {
    return; // that thread will see what this one has queued
  }
  track.starting = true;
  while (!failing_ && !track.queue.empty()) {
    const Item& first = track.queue.front();
    if (first.operation.get() != own && waits_for_device(*first.collective)) {
      break;
    }
    Batch batch = track.next(submitted_ - waiting_.size());
    if (batch.items.empty()) {
      break;
    }
    batch.times.batch = batches_++;
    track.being_started = &batch;
    std::optional<std::string> error;
    lock.unlock();
    try {
      start(track, batch);
    } catch (const std::exception& e) {
      error = e.what();
    }
    lock.lock();
    track.being_started = nullptr;
    if (!error && !failing_ && batch.rest != Rest::Outputs) {
      settle(batch, batch.error);
      retire(lock, aftermath);
    }
    if (batch.rest == Rest::Nothing) {
      aftermath.batches.push_back(std::move(batch));
      continue;
    }
    track.started.push_back(std::move(batch));
    if (!track.finishing) {
      progress_.notify_all(); // a caller may wait for it, to finish it
    }
    if (error) {
      const Batch& last = track.started.back();
      give_up(lock, [&] { return explain(last, *error); });
    }
  }
  track.starting = false;
  fail_pending(lock, aftermath);
}

void Engine::start(Track& track, Batch& batch) {
  const NeutralThread neutral;
  batch.times.started = Clock::now();
  batch.deadline = deadline_in(batch.timeout());
  for (const auto& item : batch.items) {
    make_ready(*item.collective);
    if (feeds_back_on_host(*item.collective)) {
      error_feedback_.begin(*item.collective);
    }
  }
  batch.rest = track.start(batch);
  auto& times = batch.times;
  times.packed = times.exchanged = times.finished = Clock::now();
}

void Engine::advance(Track& track, Batch& batch) {
  const NeutralThread neutral;
  track.advance(batch);
}

size_t Engine::finish(Track& track, Batch& batch) {
  const NeutralThread neutral;
  const size_t members = track.finish(batch);
  for (size_t member = 0; member < members; ++member) {
    const Collective& collective = *batch.items[member].collective;
    if (feeds_back_on_host(collective)) {
      error_feedback_.end(collective);
    }
    copy_back(collective);
  }
  batch.times.finished = Clock::now();
  return members;
}

void Engine::finish_front(Lock& lock, Track& track, Aftermath& aftermath) {
  track.finishing = true;
  Batch& front = track.started.front(); // stays put: others push at the back
  std::exception_ptr error;
  std::optional<std::string> failure;
  size_t finished = 1; ///< of its collectives, if there is an error
  while (true) {
    Batch* const next = track.to_advance();
    track.awaited = next != nullptr ? next : &front;
    lock.unlock();
    try {
      if (next != nullptr) {
        advance(track, *next);
      } else {
        finished = finish(track, front);
      }
    } catch (const Mismatch& e) {
      error = backend_error(
          "hvd: on rank " + std::to_string(transport_->rank()) + ": " +
          e.what());
    } catch (const std::exception& e) {
      failure = e.what();
    }
    lock.lock();
    if (next == nullptr || failure || failing_) {
      break;
    }
  }
  const Batch& awaited = *std::exchange(track.awaited, nullptr);
  if (failure) {
    give_up(lock, [&] { return explain(awaited, *failure); });
  } else if (!failing_) {
    Batch batch = std::move(front);
    track.started.pop_front();
    const auto left = batch.items.begin() + static_cast<ptrdiff_t>(finished);
    track.queue.insert(track.queue.begin(), left, batch.items.end());
    batch.items.erase(left, batch.items.end());
    if (!batch.items.empty() && batch.rest == Rest::Outputs) {
      if (!error && &track != &on_device_) {
        record(batch, &track == &frames_);
      }
      settle(batch, error ? error : batch.error);
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

void Engine::settle(const Batch& batch, const std::exception_ptr& error) {
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

void Engine::record(const Batch& batch, bool framed) {
  Response response;
  response.framed = framed;
  response.tensors = batch.items.size();
  for (const auto& item : batch.items) {
    response.bytes += item.collective->bytes;
  }
  response.seconds = seconds(batch.times.finished - batch.times.started);
  statistics_->add(response);
}

void Engine::retire(Lock& lock, Aftermath& aftermath) {
  if (retiring_) {
    return; // that thread will see what this one has finished
  }
  retiring_ = true;
  while (!pending_.empty() && pending_.front().finished) {
    c10::SmallVector<Pending, 1> finished;
    while (!pending_.empty() && pending_.front().finished) {
      finished.push_back(std::move(pending_.front()));
      pending_.pop_front();
      ++retired_;
    }
    c10::SmallVector<Operation*, 1> done;
    lock.unlock();
    for (auto& part : finished) {
      if (Timeline::instance().is_on() && !part.error) {
        const char* const carrier =
            part.collective->device_call ? device_->name() : transport_->name();
        Timeline::instance().add(
            witness_.group(), carrier, *part.collective, part.times);
      }
      Operation& operation = *part.operation;
      if (part.error && !operation.error) {
        operation.error = part.error;
      }
      if (--operation.remaining == 0) {
        // Taken out, for it may hold what holds the operation.
        auto& on_done = aftermath.called.emplace_back(
            std::exchange(operation.on_done, nullptr));
        if (auto continuation = on_done(operation.error)) {
          aftermath.continuations.push_back(std::move(continuation));
        }
        done.push_back(&operation);
      }
      aftermath.operations.push_back(std::move(part.operation));
    }
    Timeline::instance().write();
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
  wake_sleepers();
  conclude(lock, aftermath);
}

void Engine::wake_sleepers(const Track* but) {
  for (auto* track : tracks_) {
    if (track != but && (is_held(*track) || !is_idle(*track)) &&
        track->sleeping + track->napping > 0) {
      track->work_ready.notify_one();
    }
  }
}

void Engine::conclude(Lock& lock, Aftermath& aftermath) {
  if (aftermath.operations.empty() && aftermath.batches.empty()) {
    return;
  }
  std::ranges::move(
      aftermath.continuations, std::back_inserter(continuations_));
  aftermath.continuations.clear();
  if (continues_ != this && !ensure_continuing()) {
    run_continuations(lock);
  }
  lock.unlock();
  aftermath = {};
  lock.lock();
}

bool Engine::forked() const {
  return fork_depth() != fork_depth_;
}

uint64_t Engine::submitted() {
  if (forked()) {
    return 0;
  }
  Lock lock(mutex_);
  return submitted_;
}

} // namespace hvd
