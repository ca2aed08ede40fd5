// How what is under way over TCP goes on: who waits does it, and a thread where
// nobody does.

#include "transport/tcp/request.h"
#include "transport/tcp/tcp.h"

#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>

namespace hvd {

using tcp::Header;

namespace {

// Most waits are over before it is worth waking anybody.
constexpr std::chrono::milliseconds kPatience{1};

// Short messages take no room but the sockets', until many have come that
// nobody reads.
constexpr std::chrono::milliseconds kPatienceWithShort{5};

// How often a wait looks for silent peers, in the time that they have.
constexpr int kLooks = 4;

// How long closing may take at most.
constexpr std::chrono::milliseconds kTurn{50};

constexpr int kEvents = 64;
using Events = std::array<epoll_event, kEvents>;

/// Returns how many there are. Looks again and again for `spin`, then sleeps.
int await(
    int epoll,
    Events& events,
    std::chrono::microseconds spin,
    Deadline until) {
  const auto sleep = Clock::now() + spin;
  int count = 0;
  do {
    count = epoll_wait(epoll, events.data(), kEvents, 0);
    if (count == 0 && spin > spin.zero()) {
      sched_yield(); // what is waited for may be waiting for this core
    }
  } while (count == 0 && Clock::now() < sleep);
  if (count == 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        std::min<Clock::duration>(until - Clock::now(), std::chrono::hours(1)));
    count = epoll_wait(
        epoll,
        events.data(),
        kEvents,
        std::max(0, static_cast<int>(left.count())));
  }
  return std::max(count, 0); // less: a signal came
}

} // namespace

void TcpTransport::wait(TcpRequest& request, Deadline deadline) {
  Lock lock(mutex_);
  const auto spin = request.is_short() ? spin_ : spin_.zero();
  auto next_look = Clock::now() + patience_ / kLooks;
  while (!request.is_done()) {
    check_open(request);
    check_living(request, [&](int peer) { return peers_[peer].is_gone; });
    const auto now = Clock::now();
    if (now >= deadline) {
      time_out(request);
    }
    if (now >= next_look) {
      give_up_silent_peers();
      next_look = now + patience_ / kLooks;
    }
    turn(lock, spin, std::min<Deadline>(deadline, now + kTurn));
  }
  check_received(request);
}

/// Who waits hears of it at the end of a turn.
void TcpTransport::give_up(TcpRequest& request) {
  const Lock lock(mutex_);
  request.given_up = true;
}

void TcpTransport::turn(
    Lock& lock,
    std::chrono::microseconds spin,
    Deadline until) {
  if (driving_) {
    driven_.wait_until(lock, until);
    return;
  }
  driving_ = true;
  lock.unlock();
  Events events;
  const int count = await(epoll_, events, spin, until);
  lock.lock();
  driving_ = false;
  if (serve(events.data(), count)) {
    look(); // what others have sent before that is no less there
  }
  driven_.notify_all();
}

void TcpTransport::look() {
  Events events;
  int count = 0;
  // Who drives does it without being asked.
  while (!driving_ &&
         (count = epoll_wait(epoll_, events.data(), kEvents, 0)) > 0) {
    serve(events.data(), count);
  }
}

bool TcpTransport::serve(const epoll_event* events, int count) {
  last_look_ = Clock::now();
  bool any_ended = false;
  for (int i = 0; i < count; ++i) {
    auto& rail = *static_cast<Rail*>(events[i].data.ptr);
    if ((events[i].events & EPOLLOUT) != 0) {
      write(rail);
    }
    if ((events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) {
      read(rail);
      const auto& peer = peers_[rail.peer];
      any_ended |= peer.is_gone || peer.farewell != Farewell::None;
    }
  }
  if (any_ended) {
    hear_out();
  }
  return any_ended;
}

/// A rank that has given up is not to be taken for a dead one because another
/// one's end was seen before its farewell.
void TcpTransport::hear_out() {
  for (const auto& peer : peers_) {
    for (const auto& rail : peer.rails) {
      while (rail->connection.is_abandoned()) {
        read(*rail);
      }
    }
  }
}

/// The system would send again for a quarter of an hour, and not ask whether
/// somebody is there while it does.
void TcpTransport::give_up_silent_peers() {
  for (const int number : others()) {
    auto& peer = peers_[number];
    const auto is_silent = [&](const RailPtr& rail) {
      return rail->connection.is_open() &&
          rail->connection.is_silent(patience_);
    };
    if (std::ranges::any_of(peer.rails, is_silent)) {
      shut(peer);
      lose(number);
    }
  }
}

bool TcpTransport::any_open(
    c10::function_ref<bool(const tcp::Connection&)> is) const {
  return std::ranges::any_of(peers_, [&](const Peer& peer) {
    return std::ranges::any_of(peer.rails, [&](const RailPtr& rail) {
      return rail->connection.is_open() && is(rail->connection);
    });
  });
}

bool TcpTransport::is_busy() const {
  const auto holds = [](const Peer& peer) {
    return !peer.held.empty() && peer.rails.front()->connection.is_open();
  };
  return mailbox_.awaits_long_or_users() ||
      any_open([](const auto& one) { return one.is_full(); }) ||
      std::ranges::any_of(peers_, holds);
}

bool TcpTransport::is_moving() const {
  return is_busy() ||
      any_open([](const auto& one) { return one.is_reading(); });
}

void TcpTransport::move_in_background() {
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { move(); });
  } else if (resting_) {
    wanted_.notify_all();
  }
}

void TcpTransport::move() {
  Lock lock(mutex_);
  const auto is_over = [this] { return closing_ || aborted_; };
  const auto rest = [&](std::chrono::milliseconds time) {
    wanted_.wait_for(lock, time, is_over);
  };
  while (!is_over()) {
    resting_ = true;
    wanted_.wait(lock, [&] {
      return is_over() || is_moving() || mailbox_.awaits_short();
    });
    resting_ = false;
    rest(kPatience);
    while (!is_over() && is_moving()) {
      turn(lock, spin_.zero(), Clock::now() + kTurn);
    }
    if (!is_over() && mailbox_.awaits_short()) {
      rest(kPatienceWithShort);
      look();
    }
  }
}

bool TcpTransport::has_left(int peer) const {
  const auto& known = peers_[peer];
  return known.farewell == Farewell::None && (known.is_gone || known.is_missed);
}

} // namespace hvd
