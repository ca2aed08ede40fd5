// The engine's threads: how they start, what they do, and how they end.

#include "engine/engine.h"

#include <algorithm>
#include <iterator>

namespace hvd {

namespace {

// While its callers submit one thing after the other and none waits, a rank
// holds small collectives back, for the first frame to tell how many there are.
// A caller has paused once it has run for so long without another call, or if
// it sleeps, as one that waits for a future does. One that does not run may
// also be waiting for a core, where ranks share them, and then has not paused;
// but that is not waited for longer than this. The first look finds out whether
// there is one call that is waited for already.
constexpr std::chrono::microseconds kPause{50};
constexpr std::chrono::milliseconds kLongestPause{1};
constexpr std::chrono::microseconds kFirstLook{5};
constexpr std::chrono::microseconds kLongestLook{200};
constexpr std::chrono::milliseconds kLongestHold{4};

// For so long after a call a background thread looks for work by itself, once a
// pause: to be woken by every call that somebody waits for anyway would cost
// more than the call. Where all calls are waited for, it looks less often, for
// each look takes the core from a caller.
constexpr std::chrono::milliseconds kAwake{1};
constexpr std::chrono::microseconds kLongestNap{400};

// A continuation that takes longer may be waiting for the next one. So may all
// that run now, or they want Python's lock: the more there are, the longer.
constexpr std::chrono::microseconds kStuck{200};
constexpr size_t kMostDoublings = 9;

void join_all(std::vector<std::thread> threads) {
  for (auto& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach(); // called from a callback; the thread keeps the engine
    } else {
      thread.join();
    }
  }
}

Clock::duration longer(Clock::duration nap) {
  return std::min<Clock::duration>(2 * nap, kLongestNap);
}

/// Without the lock, for which it may be what the thread waits.
bool sleeps(std::unique_lock<std::mutex>& lock, ThreadClock thread) {
  lock.unlock();
  const bool asleep = thread.is_asleep();
  lock.lock();
  return asleep;
}

} // namespace

thread_local const Engine* Engine::continues_ = nullptr;
thread_local bool Engine::in_continuation_ = false;

std::thread Engine::make_thread(std::function<void(Engine&)> body) {
  return std::thread(
      [self = shared_from_this(), body = std::move(body)] { body(*self); });
}

void Engine::ensure_watchdog() {
  if (!watched_ && !stop_ && transport_->size() > 1) {
    threads_.push_back(make_thread([](Engine& engine) { engine.watch(); }));
    watched_ = true; // now that there is one: the system may refuse
  }
}

void Engine::ensure_background_thread(Track& track) {
  if (track.free_threads == 0 && !stop_) {
    add_background_thread(track);
  }
}

void Engine::add_background_thread(Track& track) {
  threads_.push_back(
      make_thread([&track](Engine& engine) { engine.background(track); }));
  ++track.free_threads; // now that there is one: the system may refuse
}

void Engine::background(Track& track) {
  continues_ = this;
  Lock lock(mutex_);
  Clock::duration nap = kPause;
  while (true) {
    rest(lock, track, nap);
    if (may_continue()) {
      continue_beside(lock, track);
      continue;
    }
    const bool holds = is_held(track);
    if (holds) {
      hold(lock, track);
      nap = is_held(track) ? kPause : longer(nap);
    }
    ensure_continuing(); // this thread has something else to do
    if (stop_) {
      return;
    }
    if (holds) {
      start_all(
          lock, is_held(track) ? track.queue.front().operation.get() : nullptr);
      wake_sleepers();
    } else {
      nap = kPause;
      work_off(lock, track);
    }
  }
}

bool Engine::may_continue() const {
  return !continuations_.empty() &&
      (!continuing_ || Clock::now() >= continuing_since_ + patience());
}

Clock::duration Engine::patience() const {
  return kStuck * (1 << std::min(in_continuations_ - 1, kMostDoublings));
}

bool Engine::ensure_continuing() {
  if (continuations_.empty()) {
    return true;
  }
  const auto rests = [](const Track* track) {
    return track->sleeping + track->napping > 0;
  };
  const auto resting = std::ranges::find_if(tracks_, rests);
  if (resting != tracks_.end()) {
    (*resting)->work_ready.notify_one();
    return true;
  }
  try {
    add_background_thread(frames_);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

void Engine::continue_beside(Lock& lock, Track& track) {
  --track.free_threads;
  try {
    // What they wait for may take another thread to drive.
    ensure_background_thread(track);
  } catch (const std::exception&) {
    // The system refuses one; as a rule they wait for nothing.
  }
  wake_sleepers();
  run_continuations(lock);
  ++track.free_threads;
}

void Engine::run_continuations(Lock& lock) {
  const auto* const continues = std::exchange(continues_, nullptr);
  const bool nested = std::exchange(in_continuation_, true);
  const auto turn = ++turn_;
  continuing_ = true;
  ++in_continuations_;
  bool is_first = true;
  while (turn == turn_ && !continuations_.empty()) {
    auto continuation = std::move(continuations_.front());
    continuations_.pop_front();
    continuing_since_ = Clock::now();
    if (continuations_.empty() && closed_) {
      progress_.notify_all(); // shutdown() waits for that
    }
    if (std::exchange(is_first, false)) {
      ensure_continuing(); // should this one take long
    }
    lock.unlock();
    continuation();
    continuation = nullptr; // which may free a Python tensor
    lock.lock();
  }
  --in_continuations_;
  if (turn == turn_) {
    continuing_ = false;
  }
  in_continuation_ = nested;
  continues_ = continues;
}

void Engine::continue_apart(Continuation continuation) {
  Lock lock(mutex_);
  const bool is_first = continuations_.empty(); // or somebody sees to it
  continuations_.push_back(std::move(continuation));
  if (stop_ || (is_first && !ensure_continuing())) {
    run_continuations(lock);
  }
}

void Engine::rest(Lock& lock, Track& track, Clock::duration& nap) {
  while (!stop_ && !may_continue() && !is_held(track) && is_idle(track)) {
    if (!continuations_.empty()) {
      ++track.napping;
      track.work_ready.wait_for(
          lock, std::min<Clock::duration>(patience(), kLongestNap));
      --track.napping;
    } else if (Clock::now() < last_submitted_ + kAwake) {
      const auto last = last_submitted_;
      ++track.napping;
      track.work_ready.wait_for(lock, nap);
      --track.napping;
      if (last != last_submitted_ && !is_held(track) && is_idle(track)) {
        nap = longer(nap);
      }
    } else {
      ++track.sleeping;
      track.work_ready.wait(lock);
      --track.sleeping;
    }
  }
}

void Engine::hold(Lock& lock, Track& track) {
  const auto latest = Clock::now() + kLongestHold;
  auto look = kFirstLook;
  auto last = last_submitted_;
  auto ran = caller_.now();
  while (is_held(track) && !stop_) {
    ++track.napping;
    track.work_ready.wait_for(lock, look);
    --track.napping;
    const auto now = Clock::now();
    if (now >= latest) {
      return;
    }
    if (submitting_ > 0 || last != last_submitted_) {
      last = last_submitted_;
      ran = caller_.now();
      // As a rule the caller has the core, which a look takes from it.
      look = std::clamp(2 * look, kPause, kLongestLook);
    } else if (
        caller_.now() - ran >= kPause ||
        now - last_submitted_ >= kLongestPause || sleeps(lock, caller_)) {
      return;
    }
  }
}

void Engine::run_apart(
    const std::string& call,
    std::function<void()> body,
    std::weak_ptr<Request> awaited) {
  if (forked()) {
    refuse(call);
  }
  Lock lock(mutex_);
  if (stop_) {
    refuse(call);
  }
  join_all(std::exchange(threads_over_, {}));
  auto thread = make_thread([body = std::move(body)](Engine& engine) mutable {
    std::exchange(body, nullptr)();
    Lock relock(engine.mutex_);
    auto& apart = engine.threads_apart_;
    const auto self =
        std::find_if(apart.begin(), apart.end(), [](const auto& one) {
          return one.thread.get_id() == std::this_thread::get_id();
        });
    if (self != apart.end()) { // shutdown() may have taken it
      engine.threads_over_.push_back(std::move(self->thread));
      apart.erase(self);
    }
  });
  threads_apart_.push_back({std::move(thread), std::move(awaited)});
}

void Engine::shutdown() noexcept {
  if (forked()) {
    return;
  }
  std::vector<std::thread> threads;
  std::vector<ThreadApart> apart;
  {
    Lock lock(mutex_);
    closed_ = true;
    start_all(lock);
    wake_sleepers();
    // Not the queues: a batch that is being started is in none of them.
    const auto is_busy = [](const auto* track) {
      return !track->started.empty();
    };
    while (!pending_.empty() || retiring_ || !continuations_.empty() ||
           std::any_of(tracks_.begin(), tracks_.end(), is_busy)) {
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
    for (auto* some : {&threads_, &threads_over_}) {
      std::move(some->begin(), some->end(), std::back_inserter(threads));
      some->clear();
    }
    apart.swap(threads_apart_);
  }
  for (auto& [thread, awaited] : apart) {
    if (const auto request = awaited.lock()) {
      request->give_up(); // nothing else ends a receive that nobody serves
    }
    threads.push_back(std::move(thread));
  }
  for (auto* track : tracks_) {
    track->work_ready.notify_all();
  }
  stopped_.notify_all();
  join_all(std::move(threads));
  transport_->leave();
  if (device_) {
    device_->shutdown();
  }
}

void Engine::end() noexcept {
  if (forked()) {
    return;
  }
  Lock lock(mutex_);
  const auto is_of_another_thread = [self = ThreadClock()](const auto& part) {
    const auto& caller = part.operation->caller;
    return caller && *caller != self && !caller->has_ended();
  };
  if (std::ranges::any_of(pending_, is_of_another_thread)) {
    return; // woken, it would ask for the GIL, and Python end it with a crash
  }
  lock.unlock();
  shutdown();
}

} // namespace hvd
