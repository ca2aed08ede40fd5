#include "transport/mpi/mpi.h"

#include "transport/mpi/inbox.h"
#include "transport/mpi/pending.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace hvd {

using mpi::Messages;
using mpi::World;

namespace {

// Over TCP a longer message waits until it is asked for (Open MPI: 64 KB, with
// its header), and the asking stands behind all that goes the other way: the
// two directions took turns, each with half of the line. Where sending is cheap
// so many messages would cost more than they gain.
constexpr int64_t kUnasked = 60 * 1024;

// How long a thread that waits keeps its core to itself. With more ranks than
// cores it would keep from running whom it waits for.
constexpr std::chrono::microseconds kSpin{5};

// For how long an exchange of large messages need not look whether a rank has
// given up: looking also copies what has come, and this rank's own messages
// would leave later.
constexpr std::chrono::milliseconds kSeldom{1};

// Between two looks at messages that nobody waits for.
constexpr std::chrono::microseconds kAttention{100};

template <typename Field>
std::vector<int> column(
    const std::vector<MpiTransport::Rank>& ranks,
    Field field) {
  std::vector<int> result;
  for (const auto& rank : ranks) {
    result.push_back(rank.*field);
  }
  return result;
}

std::vector<int64_t> part_bytes_among(
    const std::vector<MpiTransport::Rank>& ranks) {
  std::vector<int64_t> result;
  for (const auto& rank : ranks) {
    result.push_back(rank.by_tcp ? kUnasked : Messages::kMostBytes);
  }
  return result;
}

} // namespace

class MpiTransport::MpiRequest final : public Request {
 public:
  MpiRequest(MpiTransport& transport, std::shared_ptr<Pending> pending)
      : transport_(transport), pending_(std::move(pending)) {}

  ~MpiRequest() override {
    if (!pending_->is_done()) {
      transport_.drop(std::move(pending_));
    }
  }

  void wait(Deadline deadline) override {
    try {
      transport_.wait(*pending_, deadline);
    } catch (const RankLeft&) {
      transport_.cancel(pending_); // or leave() would wait for it
      throw;
    }
  }

  void give_up() noexcept override {
    pending_->give_up();
  }

  int source() const override {
    return pending_->source();
  }

 private:
  MpiTransport& transport_;
  std::shared_ptr<Pending> pending_;
};

MpiTransport::MpiTransport(
    int rank,
    const std::vector<Rank>& ranks,
    int tag,
    double ranks_per_core,
    bool cuda_aware,
    std::chrono::milliseconds timeout)
    : Transport(rank, static_cast<int>(ranks.size())),
      cuda_aware_(cuda_aware),
      peers_(std::vector<pid_t>(ranks.size(), -1), column(ranks, &Rank::life)),
      part_bytes_(part_bytes_among(ranks)),
      membership_(join(column(ranks, &Rank::number), tag, timeout)),
      own_(membership_->own()),
      users_(membership_->users()),
      inbox_(std::make_unique<Inbox>(users_)),
      max_tag_(users_.max_tag()),
      lane_tags_((own_.max_tag() - kFirstLaneTag + 1) / kPlaces),
      spin_(ranks_per_core <= 1 ? kSpin : kSpin.zero()),
      gone_(ranks.size()),
      attendant_([this](Deadline until) { attend(until); }) {
  if (size() > 1 && World::instance().place()->any_threads) {
    keeper_.emplace([this] { look_after(); });
  }
}

MpiTransport::~MpiTransport() {
  const bool usable = World::instance().is_usable();
  std::list<std::shared_ptr<Pending>> dropped;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    dropped.swap(dropped_);
  }
  for (const auto& pending : dropped) {
    if (usable) {
      cancel(pending);
    }
  }
  tell_of_leaving();
  leave();
  attendant_.reset(); // it uses the communicators
  if (usable && !aborted_) {
    World::instance().retire(std::move(membership_));
  } // else others may still use them, so their ids stay taken
}

std::unique_ptr<mpi::Membership> MpiTransport::join(
    const std::vector<int>& numbers,
    int tag,
    Clock::duration timeout) const {
  const auto deadline = Clock::now() + timeout;
  std::optional<Deadline> last; // once one is known to be gone
  const auto check = [&] {
    const auto gone = std::ranges::find_if(
        others(), [this](int peer) { return peers_.is_gone(peer); });
    const auto now = Clock::now();
    if (gone != others().end()) {
      last = last.value_or(now + kLinger); // it may have been here before
      if (now >= *last) {
        throw TransportError(
            "rank " + std::to_string(*gone) + " has left or died");
      }
    }
    if (now >= deadline) {
      throw TransportTimeout("Timed out waiting for the others");
    }
  };
  World::instance().meet(numbers);
  return mpi::Membership::make(
      World::instance().communicator(), numbers, rank(), tag, check);
}

int MpiTransport::tag_of(const Lane& lane, const at::Tensor& buffer) const {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  const auto place =
      static_cast<int>((lane.seq << 1 | (lane.stage & 1)) % kPlaces);
  const uint64_t hash = (lane.fingerprint ^ buffer.nbytes()) * kOdd >> 32;
  return kFirstLaneTag + place * lane_tags_ +
      static_cast<int>(hash % static_cast<uint64_t>(lane_tags_));
}

template <typename FormOf>
RequestPtr MpiTransport::start(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives,
    Clock::duration unseen,
    FormOf form_of) {
  check_open();
  if (!sends.empty()) {
    check_meanwhile(unseen);
    note_who_is_gone();
  }
  for (const auto& send : sends | not_empty) {
    check_receiver(send.peer);
  }
  auto pending = std::make_shared<Pending>(own_.messages());
  auto request = std::make_unique<MpiRequest>(*this, pending);
  // In this order: MPI copies what has come when a receive is posted.
  for (const auto& [peer, buffer] : sends | not_empty) {
    sent_bytes_ += buffer.nbytes();
    const Form form = form_of(peer, buffer);
    pending->send(buffer, peer, form.tag, form.part_bytes);
  }
  for (const auto& [peer, buffer] : receives | not_empty) {
    const Form form = form_of(peer, buffer);
    pending->receive(buffer, peer, form.tag, form.part_bytes);
  }
  return request;
}

RequestPtr MpiTransport::exchange(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives,
    const Lane& lane) {
  const auto form_of = [&](int peer, const at::Tensor& buffer) {
    return Form{tag_of(lane, buffer), part_bytes_[peer]};
  };
  return start(sends, receives, kSeldom, form_of);
}

RequestPtr MpiTransport::exchange_frames(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives) {
  // In one part: the receiver does not know how long it is.
  const auto form_of = [](int /*peer*/, const at::Tensor& /*buffer*/) {
    return Form{kFrameTag, Messages::kMostBytes};
  };
  return start(sends, receives, {}, form_of);
}

template <typename Post>
RequestPtr MpiTransport::start_users(Post post) {
  check_open();
  auto pending = std::make_shared<Pending>(users_.messages());
  auto request = std::make_unique<MpiRequest>(*this, pending);
  post(*pending);
  if (!pending->test()) {
    pending->attended_by(*attendant_);
  }
  return request;
}

RequestPtr MpiTransport::send(const at::Tensor& buffer, int peer, int tag) {
  return start_users([&](Pending& pending) {
    note_who_is_gone();
    check_receiver(peer);
    sent_bytes_ += buffer.nbytes();
    pending.send(buffer, peer, tag, Messages::kMostBytes);
  });
}

RequestPtr MpiTransport::recv(const at::Tensor& buffer, int peer, int tag) {
  return start_users([&](Pending& pending) {
    pending.receive_by(*inbox_, buffer, peer, tag);
  });
}

RequestPtr MpiTransport::recv_any(const at::Tensor& buffer, int tag) {
  return recv(buffer, Messages::kAnyPeer, tag);
}

void MpiTransport::drop(std::shared_ptr<Pending> pending) noexcept {
  if (!World::instance().is_usable()) {
    return;
  }
  try {
    if (pending->is_attended() && !aborted_) {
      std::lock_guard<std::mutex> lock(mutex_);
      dropped_.push_back(std::move(pending));
    } else {
      cancel(pending);
    }
  } catch (const std::exception&) {
    World::instance().abandon(std::move(pending));
  }
}

void MpiTransport::cancel(const std::shared_ptr<Pending>& pending) {
  if (!pending->cancel()) {
    World::instance().abandon(pending);
  }
}

void MpiTransport::attend(Deadline until) {
  for (; Clock::now() < until; std::this_thread::sleep_for(kAttention)) {
    look_after();
  }
}

void MpiTransport::look_after() noexcept {
  const auto held = World::instance().hold();
  if (aborted_ || !World::instance().is_usable()) {
    return;
  }
  try {
    own_.probe(kAbortTag);
    inbox_->post();
    std::lock_guard<std::mutex> lock(mutex_);
    dropped_.remove_if([](const auto& pending) { return pending->test(); });
  } catch (const TransportError&) {
    // Whoever waits for a message finds out.
  }
}

void MpiTransport::tell_of_leaving() noexcept {
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_ && World::instance().is_usable()) {
      membership_->leave([this](int peer) { return may_have_ended(peer); });
    }
  } catch (const TransportError&) {
    // They find out by themselves, later.
  }
}

void MpiTransport::leave() noexcept {
  if (!attendant_->is_needed()) {
    tell_of_leaving();
  }
  if (keeper_) {
    keeper_->stop();
  }
}

void MpiTransport::abort() noexcept {
  if (aborted_.exchange(true)) {
    return;
  }
  try {
    if (!World::instance().is_usable()) {
      return;
    }
    auto notices = std::make_shared<Pending>(own_.messages());
    const auto notice = at::zeros({1}, at::kByte);
    for (const int peer : others()) {
      if (!may_have_ended(peer)) {
        notices->send(notice, peer, kAbortTag, Messages::kMostBytes);
      }
    }
    cancel(notices);
  } catch (const std::exception&) {
    // The others find out by themselves, later.
  }
}

} // namespace hvd
