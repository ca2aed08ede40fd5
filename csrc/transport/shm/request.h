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

 private:
  ShmTransport& transport_;
};

} // namespace hvd
