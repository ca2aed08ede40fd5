// How what is under way over shared memory goes on: who waits does it, and a
// thread where nobody does.

#include "transport/shm/request.h"
#include "transport/shm/shm.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

namespace hvd {

using shm::Letter;
using shm::Receive;
using shm::SegmentHead;

namespace {

// How long a death or a full ring may go unnoticed.
constexpr std::chrono::milliseconds kLookForDead{100};
constexpr std::chrono::milliseconds kLookForRoom{1};

// How long a message to the user may go unnoticed that nobody waits for. The
// sender may wait, and this rank do something that waits for the sender.
constexpr std::chrono::milliseconds kLookForMessages{5};
constexpr std::chrono::milliseconds kLongestLook{50};

// What takes so long to copy that it pays to start a thread.
constexpr int64_t kForTwoThreads = 4 * 1024 * 1024;

} // namespace

shm::Bell& ShmTransport::bell() const {
  return segments_[rank()].head().bell;
}

void ShmTransport::move_until_done(
    Lock& lock,
    ShmRequest& request,
    Deadline deadline) {
  auto next_look = Clock::now() + kLookForDead;
  while (!request.is_done()) {
    const uint32_t seen = bell().strikes();
    const bool moved = progress();
    const auto own = std::ranges::find_if(
        request.receives,
        [](const auto& receive) { return shm::is_readable(*receive); });
    if (own != request.receives.end()) {
      read_next_part(lock, **own);
    } else if (request.is_done()) {
      break;
    } else if (const auto other = mailbox_.next_readable()) {
      read_next_part(lock, *other);
    } else if (!moved) {
      const auto now = Clock::now();
      check_open(request);
      if (now >= next_look) {
        // Its last letters may have come after the last look at them.
        check_living(request, [&](int peer) {
          return is_gone(peer) && !progress() && !mailbox_.next_readable();
        });
      }
      if (now >= deadline && !request.is_done()) {
        time_out(request);
      }
      next_look = now >= next_look ? now + kLookForDead : next_look;
      lock.unlock();
      const bool rung = rings_soon(seen);
      lock.lock();
      if (!rung && !mailbox_.keep_unclaimed()) {
        sleep(lock, seen, std::min(deadline, next_look));
      }
    }
  }
}

void ShmTransport::wait(ShmRequest& request, Deadline deadline) {
  Lock lock(mutex_);
  move_until_done(lock, request, deadline);
  for (const auto& receive : request.receives) {
    if (receive->lying) {
      mailbox_.claim(receive);
    }
  }
  if (outbox_.is_waiting()) {
    deliver_in_background();
  }
  check_received(request);
}

void ShmTransport::give_up(ShmRequest& request) {
  {
    const Lock lock(mutex_);
    request.given_up = true;
  }
  bell().ring();
}

const void* ShmTransport::message_of(const Receive& receive) const {
  return receive.lying
      ? segments_[receive.source].arena() + receive.lying->place
      : static_cast<const std::byte*>(receive.buffer.const_data_ptr());
}

void ShmTransport::release(const ShmRequest& request) noexcept {
  try {
    const Lock lock(mutex_);
    for (const auto& receive : request.receives) {
      if (receive->lying) {
        mailbox_.claim(receive); // it is not where the wait has failed
        const auto id = receive->lying->id;
        outbox_.acknowledge(receive->source, Letter::Form::Done, id);
      }
    }
    outbox_.flush();
    if (outbox_.is_waiting()) {
      deliver_in_background();
    }
  } catch (const std::exception&) {
    // Whoever waits next tells them.
  }
}

void ShmTransport::move_on(Lock& lock) {
  const uint32_t seen = bell().strikes();
  if (!progress()) {
    lock.unlock();
    bell().wait(seen, Clock::now() + kLookForRoom);
    lock.lock();
  }
}

void ShmTransport::attend(Deadline until) {
  Lock lock(mutex_);
  while (!aborted_ && Clock::now() < until) {
    const uint32_t seen = bell().strikes();
    if (!serve(lock)) {
      lock.unlock();
      bell().wait(seen, until);
      lock.lock();
    }
  }
}

bool ShmTransport::serve(Lock& lock) {
  const bool moved = progress();
  if (const auto receive = mailbox_.next_readable()) {
    read_next_part(lock, *receive);
    return true;
  }
  // What that takes from the arenas is readable then.
  return moved || mailbox_.make_room() || mailbox_.keep_unclaimed();
}

bool ShmTransport::progress() {
  bool moved = false;
  for (int peer = 0; peer < size(); ++peer) {
    auto& ring = segments_[rank()].ring_from(peer);
    while (const Letter* letter = ring.front()) {
      if (letter->form == Letter::Form::Done ||
          letter->form == Letter::Form::Kept) {
        outbox_.acknowledged(peer, letter->form, letter->id);
      } else {
        mailbox_.deliver(peer, *letter);
      }
      ring.pop();
      moved = true;
    }
  }
  outbox_.flush();
  return moved;
}

void ShmTransport::read_next_part(Lock& lock, Receive& receive) {
  const Letter part = receive.parts.front();
  receive.parts.pop_front();
  receive.reading = true;
  std::string error = receive.error;
  if (error.empty()) {
    auto* const to = receive.next();
    const int threads = threads_for(part);
    lock.unlock();
    try {
      if (part.form == Letter::Form::Direct) {
        peers_.read(receive.source, part.place, to, part.bytes, threads);
        check_kept(receive.source);
      } else {
        std::memcpy(
            to,
            segments_[receive.source].arena() + part.place,
            static_cast<size_t>(part.bytes));
      }
    } catch (const TransportError& e) {
      error = e.what();
    }
    lock.lock();
  }
  receive.reading = false;
  receive.error = std::move(error);
  receive.add(part.bytes);
  if (receive.asked_for) {
    outbox_.acknowledge(receive.source, Letter::Form::Done, part.id);
  } else {
    outbox_.acknowledge(receive.source, Letter::Form::Kept, part.id);
    receive.kept.push_back(part.id);
  }
  outbox_.flush();
  bell().ring(); // another thread may wait for this one
}

int ShmTransport::threads_for(const Letter& part) const {
  if (part.bytes < kForTwoThreads || !has_core_) {
    return 1;
  }
  // In a collective all ranks copy at once. Here the sender, as a rule, waits
  // and leaves its core, unless it copies something of this rank's meanwhile.
  return part.key.kind == Key::Kind::User && !outbox_.is_busy() ? 2 : 1;
}

bool ShmTransport::rings_soon(uint32_t seen) const {
  const auto latest = Clock::now() + spin_;
  while (bell().strikes() == seen) {
    if (Clock::now() >= latest) {
      return false;
    }
    sched_yield(); // what is waited for may be waiting for this core
  }
  return true;
}

void ShmTransport::sleep(Lock& lock, uint32_t seen, Deadline until) {
  if (mailbox_.takes_room()) {
    until = std::min<Deadline>(until, Clock::now() + kLookForRoom);
  }
  lock.unlock();
  bell().wait(seen, until);
  lock.lock();
  if (bell().strikes() == seen) {
    mailbox_.make_room();
  }
}

MatchingTransport::Farewell ShmTransport::farewell_of(int peer) const {
  switch (segments_[peer].head().state) {
    case SegmentHead::State::TimedOut:
      return Farewell::TimedOut;
    case SegmentHead::State::Aborted:
      return Farewell::GaveUp;
    default:
      return Farewell::None;
  }
}

void ShmTransport::check_kept(int peer) const {
  if (segments_[peer].head().state != SegmentHead::State::Open) {
    throw TransportError(
        "it gave up or left before its memory was read" + departed());
  }
}

void ShmTransport::deliver_in_background() {
  if (delivering_) {
    return;
  }
  if (delivery_.joinable()) {
    delivery_.join(); // it has ended but for its last lines
  }
  delivery_ = std::thread([this] {
    Lock lock(mutex_);
    deliver(lock);
    delivering_ = false;
  });
  delivering_ = true; // now that there is one: the system may refuse
}

/// For receives it looks now and then, rather than be woken by all that comes:
/// most are waited for soon.
void ShmTransport::deliver(Lock& lock) {
  auto pause = kLookForMessages;
  const auto has_ended = [this] { return aborted_ || closing_; };
  while (!has_ended() &&
         (outbox_.is_waiting() || mailbox_.awaits_users_message())) {
    const uint32_t seen = bell().strikes();
    if (serve(lock)) {
      pause = kLookForMessages;
    } else if (outbox_.is_waiting()) {
      lock.unlock();
      bell().wait(seen, Clock::now() + kLookForRoom);
      lock.lock();
    } else {
      ended_.wait_for(lock, pause, has_ended);
      pause = std::min(2 * pause, kLongestLook);
    }
  }
}

} // namespace hvd
