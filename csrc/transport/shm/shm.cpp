#include "transport/shm/shm.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

namespace hvd {

using shm::Key;
using shm::Letter;
using shm::Receive;
using shm::ReceivePtr;
using shm::SegmentHead;
using shm::SendPtr;

namespace {

// How long a death or a full ring may go unnoticed.
constexpr std::chrono::milliseconds kLookForDead{100};
constexpr std::chrono::milliseconds kLookForRoom{1};

// How long a message to the user may go unnoticed that nobody waits for. The
// sender may wait, and this rank do something that waits for the sender.
constexpr std::chrono::milliseconds kLookForMessages{5};
constexpr std::chrono::milliseconds kLongestLook{50};

// Longer than a peer that runs needs for a small message, shorter than waking a
// thread twice. With more ranks than cores it would keep that peer from
// running.
constexpr std::chrono::microseconds kSpin{50};

int cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::vector<shm::Segment> map_segments(
    const std::vector<ShmTransport::Rank>& ranks) {
  std::vector<shm::Segment> segments;
  segments.reserve(ranks.size());
  for (const auto& rank : ranks) {
    segments.emplace_back(rank.segment, static_cast<int>(ranks.size()));
  }
  return segments;
}

template <typename Field>
auto column(const std::vector<ShmTransport::Rank>& ranks, Field field) {
  std::vector<std::decay_t<decltype(ranks[0].*field)>> result;
  for (const auto& rank : ranks) {
    result.push_back(rank.*field);
  }
  return result;
}

Key key_of(const Lane& lane, const at::Tensor& buffer) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  return {
      Key::Kind::Exchange,
      static_cast<uint32_t>(lane.stage),
      lane.seq,
      lane.fingerprint ^ (buffer.nbytes() * kOdd)};
}

Key user_key(int tag) {
  return {Key::Kind::User, static_cast<uint32_t>(tag), 0, 0};
}

} // namespace

class ShmTransport::ShmRequest final : public Request {
 public:
  explicit ShmRequest(ShmTransport& transport) : transport_(transport) {}

  void wait(Deadline deadline) override {
    transport_.wait(*this, deadline);
  }

  int source() const override {
    return receives.front()->source;
  }

  bool is_done() const {
    const auto done = [](const auto& part) { return part->done; };
    return std::all_of(receives.begin(), receives.end(), done) &&
        std::all_of(sends.begin(), sends.end(), done);
  }

  /// Whether it waits for what the peer has yet to do.
  bool needs(int peer) const {
    const auto comes_from = [&](const ReceivePtr& receive) {
      return !receive->done &&
          (receive->peer == peer || receive->source == peer);
    };
    const auto goes_to = [&](const SendPtr& send) {
      return !send->done &&
          std::count(send->unread.begin(), send->unread.end(), peer) > 0;
    };
    return std::any_of(receives.begin(), receives.end(), comes_from) ||
        std::any_of(sends.begin(), sends.end(), goes_to);
  }

  bool needs_any() const {
    return std::any_of(receives.begin(), receives.end(), [](const auto& one) {
      return one->source == Receive::kAny && one->peer == Receive::kAny;
    });
  }

  void throw_error() const {
    for (const auto& receive : receives) {
      if (!receive->error.empty()) {
        throw TransportError(
            "shm: receive from " + transport_.name_of(receive->source) + ": " +
            receive->error);
      }
    }
  }

  std::vector<ReceivePtr> receives;
  std::vector<SendPtr> sends;

 private:
  ShmTransport& transport_;
};

void ShmTransport::initialise(int segment, int size) {
  shm::Segment(segment, size).initialise(size);
}

ShmTransport::ShmTransport(int rank, const std::vector<Rank>& ranks)
    : Transport(rank, static_cast<int>(ranks.size())),
      numbers_(column(ranks, &Rank::number)),
      segments_(map_segments(ranks)),
      peers_(column(ranks, &Rank::pid), column(ranks, &Rank::life)),
      spin_(size() <= cores() ? kSpin : std::chrono::microseconds(0)),
      outbox_(rank, segments_, column(ranks, &Rank::reads_memory)) {}

template <typename Condition>
void ShmTransport::deliver_while(Lock& lock, Condition condition) {
  while (!aborted_ && condition()) {
    const uint32_t seen = bell().strikes();
    if (!progress()) {
      lock.unlock();
      bell().wait(seen, Clock::now() + kLookForRoom);
      lock.lock();
    }
  }
}

ShmTransport::~ShmTransport() {
  // What others have yet to read from this process they must read now.
  const auto latest = Clock::now() + std::chrono::seconds(1);
  Lock lock(mutex_);
  deliver_while(lock, [&] {
    return (outbox_.is_waiting() || outbox_.is_read_from()) &&
        Clock::now() < latest;
  });
  closing_ = true;
  lock.unlock();
  ended_.notify_all();
  if (delivery_.joinable()) {
    delivery_.join();
  }
  auto& head = segments_[rank()].head();
  auto open = SegmentHead::State::Open;
  head.state.compare_exchange_strong(open, SegmentHead::State::Left);
}

shm::Bell& ShmTransport::bell() const {
  return segments_[rank()].head().bell;
}

template <typename KeyOf>
RequestPtr ShmTransport::start(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives,
    KeyOf key_of) {
  auto request = std::make_unique<ShmRequest>(*this);
  Lock lock(mutex_);
  check_open();
  for (const auto& [peer, buffer] : receives) {
    request->receives.push_back(
        std::make_shared<Receive>(key_of(buffer), peer, buffer));
    mailbox_.post(request->receives.back());
  }
  for (auto first = sends.begin(); first != sends.end();) {
    // What goes to several peers is copied aside once.
    std::vector<int> to;
    auto last = first;
    for (; last != sends.end() && last->buffer.is_same(first->buffer); ++last) {
      to.push_back(last->peer);
      sent_bytes_ += last->buffer.nbytes();
    }
    auto parts = outbox_.send(key_of(first->buffer), first->buffer, to);
    std::move(parts.begin(), parts.end(), std::back_inserter(request->sends));
    first = last;
  }
  outbox_.flush();
  const auto is_left_alone = [](const ReceivePtr& receive) {
    return receive->key.kind == Key::Kind::User && !receive->done;
  };
  if (outbox_.is_waiting() ||
      std::any_of(
          request->receives.begin(), request->receives.end(), is_left_alone)) {
    deliver_in_background();
  }
  return request;
}

RequestPtr ShmTransport::exchange(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives,
    const Lane& lane) {
  const auto not_empty = [](const std::vector<Transfer>& all) {
    std::vector<Transfer> some;
    std::copy_if(
        all.begin(), all.end(), std::back_inserter(some), [](const auto& one) {
          return one.buffer.numel() > 0;
        });
    return some;
  };
  return start(
      not_empty(sends), not_empty(receives), [&](const at::Tensor& buffer) {
        return key_of(lane, buffer);
      });
}

RequestPtr ShmTransport::exchange_frames(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives) {
  return start(sends, receives, [](const at::Tensor&) {
    return Key{Key::Kind::Frame, 0, 0, 0};
  });
}

RequestPtr ShmTransport::send(const at::Tensor& buffer, int peer, int tag) {
  return start(
      {{peer, buffer}}, {}, [&](const at::Tensor&) { return user_key(tag); });
}

RequestPtr ShmTransport::recv(const at::Tensor& buffer, int peer, int tag) {
  return start(
      {}, {{peer, buffer}}, [&](const at::Tensor&) { return user_key(tag); });
}

RequestPtr ShmTransport::recv_any(const at::Tensor& buffer, int tag) {
  return recv(buffer, Receive::kAny, tag);
}

void ShmTransport::wait(ShmRequest& request, Deadline deadline) {
  auto next_look = Clock::now() + kLookForDead;
  Lock lock(mutex_);
  while (!request.is_done()) {
    const uint32_t seen = bell().strikes();
    const bool moved = progress();
    const auto own = std::find_if(
        request.receives.begin(),
        request.receives.end(),
        [](const auto& receive) { return shm::is_readable(*receive); });
    if (own != request.receives.end()) {
      read_next_part(lock, **own);
    } else if (request.is_done()) {
      break;
    } else if (const auto other = mailbox_.next_readable()) {
      read_next_part(lock, *other);
    } else if (!moved) {
      const auto now = Clock::now();
      check_open();
      if (now >= next_look) {
        check_living(request);
      }
      if (now >= deadline) {
        timed_out_ = true;
        throw TransportTimeout("shm: Timed out waiting for" + awaited(request));
      }
      next_look = now >= next_look ? now + kLookForDead : next_look;
      lock.unlock();
      rest(seen, std::min(deadline, next_look));
      lock.lock();
    }
  }
  if (outbox_.is_waiting()) {
    deliver_in_background();
  }
  request.throw_error();
}

void ShmTransport::attend(Deadline until) {
  Lock lock(mutex_);
  while (!aborted_ && Clock::now() < until) {
    const uint32_t seen = bell().strikes();
    const bool moved = progress();
    if (const auto receive = mailbox_.next_readable()) {
      read_next_part(lock, *receive);
    } else if (!moved) {
      lock.unlock();
      bell().wait(seen, until);
      lock.lock();
    }
  }
}

/// Takes in what has come and writes what there is room for; returns whether
/// something had come.
bool ShmTransport::progress() {
  bool moved = false;
  for (int peer = 0; peer < size(); ++peer) {
    auto& ring = segments_[rank()].ring_from(peer);
    while (const Letter* letter = ring.front()) {
      if (letter->form == Letter::Form::Done) {
        outbox_.acknowledged(peer, letter->id);
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
    auto* const to =
        static_cast<std::byte*>(receive.buffer.mutable_data_ptr()) +
        receive.read;
    lock.unlock();
    try {
      if (part.form == Letter::Form::Direct) {
        peers_.read(receive.source, part.place, to, part.bytes);
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
  shm::Mailbox::add_read(receive, part.bytes, std::move(error));
  outbox_.acknowledge(receive.source, part.id);
  outbox_.flush();
  bell().ring(); // another thread may wait for this one
}

void ShmTransport::rest(uint32_t seen, Deadline until) {
  const auto end = Clock::now() + spin_;
  while (bell().strikes() == seen) {
    if (Clock::now() >= end) {
      bell().wait(seen, until);
      return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

std::string ShmTransport::name_of(int peer) const {
  return "rank " + std::to_string(numbers_[peer]);
}

std::string ShmTransport::awaited(const ShmRequest& request) const {
  std::string ranks;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && (request.needs(peer) || request.needs_any())) {
      ranks += (ranks.empty() ? " " : ", ") + name_of(peer);
    }
  }
  return ranks;
}

void ShmTransport::check_open() const {
  if (aborted_) {
    throw TransportError("shm: aborted" + departed());
  }
  // Who timed out comes before those who gave up because of that.
  for (const auto& [state, what] :
       {std::pair(SegmentHead::State::TimedOut, " timed out and gave up"),
        std::pair(SegmentHead::State::Aborted, " gave up")}) {
    for (int peer = 0; peer < size(); ++peer) {
      if (segments_[peer].head().state == state) {
        throw TransportError("shm: " + name_of(peer) + what + departed());
      }
    }
  }
}

bool ShmTransport::is_gone(int peer) const {
  return peer != rank() &&
      (segments_[peer].head().state == SegmentHead::State::Left ||
       peers_.is_gone(peer));
}

/// Why others may have given up, for a message.
std::string ShmTransport::departed() const {
  std::string text;
  for (int peer = 0; peer < size(); ++peer) {
    if (is_gone(peer)) {
      text += "; " + name_of(peer) + " has left or died";
    }
  }
  return text;
}

void ShmTransport::check_living(const ShmRequest& request) {
  int gone = 0;
  for (int peer = 0; peer < size(); ++peer) {
    // Its last letters may have come after the last look at them.
    if (!is_gone(peer) || progress() || mailbox_.next_readable()) {
      continue;
    }
    ++gone;
    if (request.needs(peer)) {
      throw TransportError("shm: " + name_of(peer) + " has left or died");
    }
  }
  if (gone == size() - 1 && request.needs_any()) {
    throw TransportError("shm: all other ranks have left or died");
  }
}

void ShmTransport::deliver_in_background() {
  if (delivering_) {
    return;
  }
  if (delivery_.joinable()) {
    delivery_.join(); // it has ended but for its last lines
  }
  delivering_ = true;
  delivery_ = std::thread([this] {
    Lock lock(mutex_);
    deliver(lock);
    delivering_ = false;
  });
}

/// For receives it looks now and then, rather than be woken by all that comes:
/// most are waited for soon.
void ShmTransport::deliver(Lock& lock) {
  auto pause = kLookForMessages;
  const auto has_ended = [this] { return aborted_ || closing_; };
  while (!has_ended() &&
         (outbox_.is_waiting() || mailbox_.awaits_users_message())) {
    const uint32_t seen = bell().strikes();
    const bool moved = progress();
    if (const auto receive = mailbox_.next_readable()) {
      read_next_part(lock, *receive);
    } else if (outbox_.is_waiting() && !moved) {
      lock.unlock();
      bell().wait(seen, Clock::now() + kLookForRoom);
      lock.lock();
    } else {
      pause = moved ? kLookForMessages : std::min(2 * pause, kLongestLook);
      ended_.wait_for(lock, pause, has_ended);
    }
  }
}

void ShmTransport::abort() noexcept {
  {
    Lock lock(mutex_);
    aborted_ = true;
    segments_[rank()].head().state =
        timed_out_ ? SegmentHead::State::TimedOut : SegmentHead::State::Aborted;
  }
  ended_.notify_all();
  for (const auto& segment : segments_) {
    segment.head().bell.ring();
  }
}

} // namespace hvd
