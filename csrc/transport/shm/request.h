#pragma once

#include "transport/shm/shm.h"

namespace hvd {

class ShmTransport::ShmRequest final
    : public MatchedRequest<shm::Receive, shm::Send> {
 public:
  explicit ShmRequest(ShmTransport& transport) : transport_(transport) {}

  void wait(Deadline deadline) override {
    transport_.wait(*this, deadline);
  }
  void give_up() noexcept override {
    transport_.give_up(*this);
  }

 private:
  ShmTransport& transport_;
};

/// Messages that lie where their senders have put them, or in scratch memory
/// where others wanted the room.
class ShmTransport::ShmArrivals final : public Arrivals {
 public:
  /// `scratch`: the buffers of the receives.
  ShmArrivals(
      ShmTransport& transport,
      std::vector<ScratchPool::Loan> scratch,
      std::vector<shm::ReceivePtr> receives)
      : transport_(transport),
        scratch_(std::move(scratch)),
        request_(transport) {
    request_.receives = std::move(receives);
  }
  ~ShmArrivals() override {
    transport_.release(request_);
  }

  void wait(Deadline deadline) override {
    request_.wait(deadline);
  }
  const void* data(size_t place) const override {
    return transport_.message_of(*request_.receives[place]);
  }

 private:
  ShmTransport& transport_;
  const std::vector<ScratchPool::Loan> scratch_;
  ShmRequest request_;
};

} // namespace hvd
