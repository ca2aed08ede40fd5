// How a thread waits for what MPI has under way, and what else it may learn
// meanwhile: that a rank has given up, left or died.

#include "transport/mpi/backoff.h"
#include "transport/mpi/mpi.h"
#include "transport/mpi/pending.h"

#include <algorithm>

namespace hvd {

using mpi::Messages;
using mpi::World;

namespace {

// How often a thread that waits looks for what else may have happened.
constexpr std::chrono::milliseconds kLook{5};

// Nobody gives up on a rank that was busy elsewhere for less.
constexpr std::chrono::milliseconds kAway{100};
constexpr int kManyLooks = 100;

} // namespace

bool MpiTransport::is_gone(int peer) const {
  const auto held = World::instance().hold();
  return has_left_or_died(peer);
}

bool MpiTransport::has_left_or_died(int peer) const {
  return peer != rank() && (peers_.is_gone(peer) || has_left(peer));
}

bool MpiTransport::has_left(int peer) const {
  try {
    return World::instance().is_usable() && membership_->has_left(peer);
  } catch (const TransportError&) {
    return false; // whoever waits for a message finds out
  }
}

bool MpiTransport::may_have_ended(int peer) const {
  // Its word may be behind others, as in check_meanwhile().
  for (int looks = kManyLooks; looks > 0; --looks) {
    if (peers_.is_gone(peer) || own_.probe(kAbortTag, peer) >= 0 ||
        (has_left(peer) && !World::instance().ends_together())) {
      return true;
    }
  }
  return false;
}

void MpiTransport::check_not_aborted() const {
  if (aborted_) {
    throw TransportError("mpi: this rank or another has given up");
  }
}

void MpiTransport::check_open() const {
  check_not_aborted();
  if (!World::instance().is_usable()) {
    throw TransportError("mpi: MPI was finalised");
  }
}

void MpiTransport::wait(Pending& pending, Deadline deadline) {
  if (pending.is_done()) {
    return;
  }
  auto next_look = Clock::now() + kLook;
  for (std::optional<mpi::Backoff> backoff(spin_);; backoff->rest()) {
    check_not_aborted();
    if (keeper_) {
      keeper_->note();
    }
    const auto done_before = pending.done();
    if (test(pending)) {
      return;
    }
    if (pending.is_given_up()) {
      throw RankLeft("mpi: this rank has left");
    }
    if (pending.done() > done_before) {
      backoff.emplace(spin_);
    }
    const auto now = Clock::now();
    if (now >= deadline) {
      throw TransportTimeout("Timed out waiting for " + pending.describe());
    }
    if (now >= next_look) {
      next_look = now + kLook;
      look_around(pending);
    }
  }
}

bool MpiTransport::test(Pending& pending) {
  {
    const auto held = World::instance().hold();
    if (!World::instance().has_ended()) {
      return pending.test();
    }
  }
  // A daemon thread, at the end of the process. Python must not get it back.
  for (;;) {
    std::this_thread::sleep_for(kLook);
  }
}

void MpiTransport::check_meanwhile(Clock::duration unseen) {
  const auto now = Clock::now().time_since_epoch();
  const auto away = now - last_start_.exchange(now);
  if (away < unseen) {
    return;
  }
  // Each look takes in a message or two, and the notice is behind others.
  for (int looks = away < kAway ? 1 : kManyLooks; looks > 0; --looks) {
    check_notices();
  }
}

/// Now and then: who has just left has not ended yet. Of all at once, for there
/// is one clock.
void MpiTransport::note_who_is_gone() {
  const auto now = Clock::now().time_since_epoch();
  if (now - last_note_.load() < kLook) {
    return;
  }
  check_notices();
  const bool any_left = membership_->has_any_left();
  for (const int peer : others()) {
    if (peers_.is_gone(peer) || (any_left && has_left(peer))) {
      gone_[peer] = true;
    }
  }
  last_note_ = now;
}

void MpiTransport::check_receiver(int peer) const {
  if (gone_[peer]) {
    throw RankLeft(
        "mpi send to rank " + std::to_string(peer) + ": it has left or died");
  }
}

void MpiTransport::check_notices() const {
  if (const int peer = own_.probe(kAbortTag); peer >= 0) {
    throw TransportError("mpi: rank " + std::to_string(peer) + " has given up");
  }
}

void MpiTransport::look_around(Pending& pending) const {
  const auto held = World::instance().hold();
  if (World::instance().has_ended()) {
    return;
  }
  check_notices();
  const int peer = pending.awaited_peer();
  const bool any = peer == Messages::kAnyPeer;
  const auto all_awaited = [&](auto is) {
    return any ? std::ranges::all_of(others(), is) : is(peer);
  };
  if (!all_awaited([this](int one) { return has_left_or_died(one); })) {
    return;
  }
  // What it had sent may be here all the same, or on its way from another host.
  const bool died =
      all_awaited([this](int one) { return peers_.is_gone(one); });
  if (!pending.test_for(died ? kLook.zero() : kLinger)) {
    throw RankLeft(
        pending.describe() +
        (any ? ": all others have left or died" : ": it has left or died"));
  }
}

} // namespace hvd
