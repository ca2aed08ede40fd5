#include "transport/shm/shm.h"

#include "transport/shm/request.h"

#include <algorithm>

namespace hvd {

using shm::Letter;
using shm::Receive;
using shm::ReceivePtr;
using shm::SegmentHead;

namespace {

// Longer than a peer needs for a small message, also where it first needs this
// rank's core; shorter than what sleeping and being woken cost two of them.
constexpr std::chrono::microseconds kSpin{100};

// Where more ranks share a core, what one waits for is seldom there in time
// (measured: 3 and 4 ranks on 2 cores gain by it, 8 lose).
constexpr double kRanksOnACore = 2;

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

} // namespace

void ShmTransport::initialise(int segment, int size) {
  shm::Segment(segment, size).initialise(size);
}

ShmTransport::ShmTransport(
    int rank,
    const std::vector<Rank>& ranks,
    double ranks_per_core)
    : MatchingTransport(rank, static_cast<int>(ranks.size())),
      numbers_(column(ranks, &Rank::number)),
      peers_(column(ranks, &Rank::pid), column(ranks, &Rank::life)),
      segments_(map_segments(ranks)),
      spin_(ranks_per_core <= kRanksOnACore ? kSpin : kSpin.zero()),
      has_core_(ranks_per_core <= 1),
      outbox_(
          rank,
          segments_,
          column(ranks, &Rank::reads_memory),
          segments_under_way()) {}

ShmTransport::~ShmTransport() {
  // What others have yet to read from this process they must read now.
  const auto latest = Clock::now() + std::chrono::seconds(1);
  Lock lock(mutex_);
  while (!aborted_ && outbox_.is_busy() && Clock::now() < latest) {
    move_on(lock);
  }
  closing_ = true;
  lock.unlock();
  ended_.notify_all();
  if (delivery_.joinable()) {
    delivery_.join();
  }
  tell_of_leaving();
}

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
    post(request->receives.back());
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
      std::ranges::any_of(request->receives, is_left_alone)) {
    deliver_in_background();
  }
  return request;
}

ArrivalsPtr ShmTransport::receive(
    const std::vector<int>& peers,
    int64_t bytes,
    const Lane& lane) {
  if (bytes == 0) { // which nobody sends
    return Transport::receive(peers, bytes, lane);
  }
  std::vector<ScratchPool::Loan> loans;
  std::vector<ReceivePtr> receives;
  for (const int peer : peers) {
    loans.push_back(scratch().lend(bytes));
    const auto buffer = loans.back().bytes(bytes);
    receives.push_back(
        std::make_shared<Receive>(
            Key::of(lane, buffer), peer, buffer, /*to_read=*/true));
  }
  Lock lock(mutex_);
  check_open();
  std::ranges::for_each(
      receives, [this](const auto& receive) { post(receive); });
  outbox_.flush();
  return std::make_unique<ShmArrivals>(
      *this, std::move(loans), std::move(receives));
}

void ShmTransport::post(const ReceivePtr& receive) {
  for (const auto id : mailbox_.post(receive)) {
    outbox_.acknowledge(receive->source, Letter::Form::Done, id);
  }
}

bool ShmTransport::is_gone(int peer) const {
  return peer != rank() &&
      (segments_[peer].head().state == SegmentHead::State::Left ||
       peers_.is_gone(peer));
}

void ShmTransport::tell_of_leaving() {
  auto open = SegmentHead::State::Open;
  segments_[rank()].head().state.compare_exchange_strong(
      open, SegmentHead::State::Left);
}

void ShmTransport::leave() noexcept {
  const Lock lock(mutex_);
  progress();
  if (!outbox_.is_busy() && !mailbox_.awaits_users_message()) {
    tell_of_leaving();
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
