// What the engine does when something is wrong or takes too long.

#include "engine/engine.h"

#include "common/error.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <iterator>
#include <sstream>

namespace hvd {

namespace {

// How long an error message waits for the word of the other ranks.
constexpr std::chrono::seconds kPatience{1};

} // namespace

void Engine::abort_transports() noexcept {
  transport_->abort();
  if (device_) {
    device_->abort();
  }
}

void Engine::give_up(Lock& lock, c10::function_ref<std::string()> why) {
  if (failing_) {
    return; // torn down with the group: the cause is elsewhere
  }
  failing_ = true;
  lock.unlock();
  abort_transports();
  const std::string message = why();
  lock.lock();
  fail(message);
}

void Engine::fail(const std::string& message) {
  failing_ = true;
  if (!error_) {
    error_ = backend_error(message);
    failure_ = message;
    progress_.notify_all();
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

void Engine::abort(const std::string& reason) noexcept {
  if (forked()) {
    return;
  }
  Aftermath aftermath;
  Lock lock(mutex_);
  if (!error_) {
    failing_ = true; // and no error yet: batches stay while messages may arrive
    lock.unlock();
    abort_transports();
    lock.lock();
    fail(reason);
  }
  fail_pending(lock, aftermath);
  conclude(lock, aftermath);
}

void Engine::fail_pending() noexcept {
  Aftermath aftermath;
  Lock lock(mutex_);
  fail_pending(lock, aftermath);
  conclude(lock, aftermath);
}

bool Engine::failed() {
  if (forked()) {
    return false; // its lock may be held by a thread that does not exist here
  }
  Lock lock(mutex_);
  return error_ != nullptr;
}

void Engine::rethrow_failure() {
  Lock lock(mutex_);
  progress_.wait(lock, [this] { return error_ || !failing_; });
  if (error_) {
    std::rethrow_exception(error_);
  }
}

void Engine::check_usable(const char* call) {
  if (forked()) {
    refuse(call);
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
    out << "timed out after " << batch.timeout().count() << " ms. ";
  }
  Witness::Place place;
  {
    Lock lock(mutex_);
    place = place_at(&collective);
  }
  return out.str() + compare(place, error);
}

std::string Engine::compare(
    const Witness::Place& place,
    const std::string& error) {
  std::lock_guard<std::mutex> guard(witness_mutex_);
  witness_.tell(place);
  const auto gone = [this](int rank) { return transport_->is_gone(rank); };
  const auto submitted = place.seq + 1; // as all should have
  // Who waits for a message, or for nothing, has told the others long before.
  const auto patience = place.waiting ? kPatience : decltype(kPatience)::zero();
  const auto places = witness_.ask(submitted, patience, gone);
  return Witness::difference(place.seq, places).value_or(error) +
      ". Where the ranks were: " + witness_.report(submitted, places, gone);
}

std::string Engine::message_failed(
    const std::string& name,
    const std::exception& exception) {
  const std::string error = exception.what();
  const std::string what = "hvd: " + name + " failed on rank " +
      std::to_string(transport_->rank()) + ": ";
  if (dynamic_cast<const RankLeft*>(&exception) != nullptr) {
    return what + error;
  }
  Lock lock(mutex_);
  const Witness::Place at = place();
  const bool waited_for = at.waiting || at.message.number > 0;
  give_up(
      lock, [&] { return what + (waited_for ? compare(at, error) : error); });
  progress_.wait(lock, [this] { return error_ != nullptr; });
  return failure_.starts_with(what) ? failure_ : what + error + ". " + failure_;
}

Witness::Place Engine::place() const {
  const Collective* waited_for = nullptr;
  for (const auto* track : tracks_) {
    const Batch* const awaited = track->awaited != nullptr ? track->awaited
        : !track->started.empty() ? &track->started.front()
                                  : track->being_started;
    if (awaited != nullptr) {
      const auto* first = awaited->items[0].collective;
      if (waited_for == nullptr || first->seq < waited_for->seq) {
        waited_for = first;
      }
    }
  }
  return place_at(waited_for);
}

Witness::Place Engine::place_at(const Collective* waited_for) const {
  Witness::Place place;
  place.submitted = submitted_;
  place.splits = last_splits_;
  if (!messages_.empty()) {
    place.message = messages_.front();
  }
  if (waited_for == nullptr) {
    place.seq = submitted_ - 1;
    place.signature = last_called_;
    return place;
  }
  place.waiting = true;
  place.seq = waited_for->seq;
  place.signature = waited_for->signature;
  if (waited_for->signature.verb == Verb::Alltoall) {
    place.splits = Witness::Splits::of(*waited_for);
  }
  return place;
}

void Engine::watch() {
  StallInspector inspector(settings_.stall, Clock::now());
  Lock lock(mutex_);
  while (!stopped_.wait_for(lock, inspector.tick(), [this] { return stop_; })) {
    if (failing_) {
      continue;
    }
    const Witness::Place at = place();
    const auto due = inspector.inspect(at, Clock::now());
    lock.unlock();
    if (due.to_compare && differs_elsewhere(at)) {
      // Whoever waits for the operation finds it failed, here and on every
      // other rank, and explains why.
      abort_transports();
    }
    if (due.to_tell) {
      std::lock_guard<std::mutex> guard(witness_mutex_);
      witness_.tell(at);
    }
    tell_stall(
        due.collective, [&] { return describe_stall(at, due.collective.age); });
    tell_stall(due.message, [&] {
      return describe_message_stall(at, due.message.age);
    });
    lock.lock();
  }
}

void Engine::tell_stall(
    const StallInspector::Stall& stall,
    c10::function_ref<std::string()> describe) {
  if (stall.to_log) {
    LOG(WARNING) << describe();
  }
  if (stall.to_end) {
    abort(describe() + ". HVD_STALL_SHUTDOWN_TIME allows no more");
  }
}

bool Engine::differs_elsewhere(const Witness::Place& place) {
  std::lock_guard<std::mutex> guard(witness_mutex_);
  witness_.tell(place);
  auto places = witness_.heard();
  if (settings_.check) {
    // Headers meet, but for those of a host and of a device: every rank hears
    // of it once all have come, and the group goes on.
    for (auto& other : places) {
      if (other && other->signature != place.signature &&
          other->signature.device == place.signature.device) {
        other.reset();
      }
    }
  }
  return Witness::difference(place.seq, places).has_value();
}

std::string Engine::describe_wait(const std::string& what, Clock::duration age)
    const {
  std::ostringstream out;
  out.precision(3);
  out << "hvd: " << what << " has been waiting on rank " << transport_->rank()
      << " for " << seconds(age) << " s. ";
  return out.str();
}

std::string Engine::describe_stall(
    const Witness::Place& place,
    Clock::duration age) {
  std::lock_guard<std::mutex> guard(witness_mutex_);
  const auto places = witness_.heard();
  const auto what = place.signature.describe() + ", number " +
      std::to_string(place.seq) + " in process group " + witness_.group() + ',';
  return describe_wait(what, age) +
      "Missing: " + witness_.missing(place.seq, places);
}

std::string Engine::describe_message_stall(
    const Witness::Place& place,
    Clock::duration age) {
  std::lock_guard<std::mutex> guard(witness_mutex_);
  const auto gone = [this](int rank) { return transport_->is_gone(rank); };
  const auto places = witness_.heard();
  const auto what =
      place.message.describe() + " in process group " + witness_.group();
  return describe_wait(what, age) +
      "Where the ranks are: " + witness_.report(place.seq + 1, places, gone);
}

} // namespace hvd
