#include "transport/routed.h"

namespace hvd {

class RoutedTransport::RoutedRequest final : public Request {
 public:
  /// Either half may be null.
  RoutedRequest(RoutedTransport& transport, RequestPtr near, RequestPtr far)
      : transport_(transport), near_(std::move(near)), far_(std::move(far)) {}

  void wait(Deadline deadline) override {
    // In this order: large messages want a waiting thread to read them.
    wait(near_, transport_.far_attendant_, deadline);
    wait(far_, transport_.near_attendant_, deadline);
  }

  /// The user's messages are far ones.
  void give_up() noexcept override {
    far_->give_up();
  }

  int source() const override {
    return far_->source();
  }

 private:
  void wait(
      const RequestPtr& half,
      std::optional<Attendant>& of_the_other,
      Deadline deadline) const {
    if (half) {
      std::optional<Attendant::Absence> absence;
      if (of_the_other) {
        absence.emplace(*of_the_other);
      }
      try {
        half->wait(deadline);
      } catch (const TransportTimeout&) {
        transport_.note_timeout(); // the other half does not know of it
        throw;
      }
    }
  }

  RoutedTransport& transport_;
  const RequestPtr near_;
  const RequestPtr far_;
};

RoutedTransport::RoutedTransport(
    std::unique_ptr<Transport> near,
    std::unique_ptr<Transport> far,
    Hosts hosts)
    : Transport(far->rank(), far->size(), std::move(hosts)),
      near_(std::move(near)),
      far_(std::move(far)),
      name_(std::string("shm+") + far_->name()) {
  if (near_ && !near_->moves_by_itself()) {
    near_attendant_.emplace([this](Deadline until) { near_->attend(until); });
  }
  if (near_ && !far_->moves_by_itself()) {
    far_attendant_.emplace([this](Deadline until) { far_->attend(until); });
  }
}

bool RoutedTransport::is_gone(int peer) const {
  return near_ && is_near(peer) ? near_->is_gone(hosts().place_of(peer))
                                : far_->is_gone(peer);
}

Sent RoutedTransport::sent() const {
  return {
      far_->sent().network, near_ ? near_->sent().shared_memory : uint64_t{0}};
}

bool RoutedTransport::is_near(int peer) const {
  return hosts().host_of(peer) == hosts().host_of(rank());
}

RoutedTransport::Halves RoutedTransport::split(
    const std::vector<Transfer>& transfers) const {
  Halves halves;
  for (const auto& [peer, buffer] : transfers) {
    if (is_near(peer)) {
      halves.near.push_back({hosts().place_of(peer), buffer});
    } else {
      halves.far.push_back({peer, buffer});
    }
  }
  return halves;
}

template <typename Start>
RequestPtr RoutedTransport::start(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives,
    Start start_half) {
  const auto [near_sends, far_sends] = split(sends);
  const auto [near_receives, far_receives] = split(receives);
  // In this order: a near request may be dropped should the other half fail.
  RequestPtr near;
  if (!near_sends.empty() || !near_receives.empty()) {
    near = start_half(*near_, near_sends, near_receives);
  }
  RequestPtr far;
  if (!far_sends.empty() || !far_receives.empty()) {
    far = start_half(*far_, far_sends, far_receives);
  }
  return std::make_unique<RoutedRequest>(
      *this, std::move(near), std::move(far));
}

RequestPtr RoutedTransport::exchange(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives,
    const Lane& lane) {
  const auto start_half = [&](auto& half, auto& to, auto& from) {
    return half.exchange(to, from, lane);
  };
  return start(sends, receives, start_half);
}

RequestPtr RoutedTransport::exchange_frames(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives) {
  const auto start_half = [](auto& half, auto& to, auto& from) {
    return half.exchange_frames(to, from);
  };
  return start(sends, receives, start_half);
}

RequestPtr RoutedTransport::far_only(RequestPtr request) {
  return std::make_unique<RoutedRequest>(*this, nullptr, std::move(request));
}

RequestPtr RoutedTransport::send(const at::Tensor& buffer, int peer, int tag) {
  return far_only(far_->send(buffer, peer, tag));
}

RequestPtr RoutedTransport::recv(const at::Tensor& buffer, int peer, int tag) {
  return far_only(far_->recv(buffer, peer, tag));
}

RequestPtr RoutedTransport::recv_any(const at::Tensor& buffer, int tag) {
  return far_only(far_->recv_any(buffer, tag));
}

void RoutedTransport::note_timeout() noexcept {
  if (near_) {
    near_->note_timeout();
  }
  far_->note_timeout();
}

void RoutedTransport::abort() noexcept {
  if (near_) {
    near_->abort();
  }
  far_->abort();
}

void RoutedTransport::leave() noexcept {
  if (near_) {
    near_->leave();
  }
  far_->leave();
}

} // namespace hvd
