#pragma once

#include <c10/util/Exception.h>

#include "transport/transport.h"

#include <limits>

namespace hvd {

/// The transport of a group of one: there is nobody to send to.
class SoloTransport final : public Transport {
 public:
  SoloTransport() : Transport(0, 1) {}

  const char* name() const override {
    return "none";
  }
  RequestPtr exchange(
      const std::vector<Transfer>& /*sends*/,
      const std::vector<Transfer>& /*receives*/,
      const Lane& /*lane*/) override {
    return std::make_unique<Done>();
  }
  RequestPtr exchange_frames(
      const std::vector<Transfer>& /*sends*/,
      const std::vector<Transfer>& /*receives*/) override {
    return std::make_unique<Done>();
  }
  RequestPtr send(const at::Tensor&, int peer, int) override {
    return no_peer(peer);
  }
  RequestPtr recv(const at::Tensor&, int peer, int) override {
    return no_peer(peer);
  }
  RequestPtr recv_any(const at::Tensor&, int) override {
    return no_peer(-1);
  }
  int max_tag() const override {
    return std::numeric_limits<int>::max();
  }
  void abort() noexcept override {}

 private:
  class Done final : public Request {
   public:
    void wait(Deadline /*deadline*/) override {}
  };

  static RequestPtr no_peer(int peer) {
    TORCH_CHECK(false, "hvd: a group of one rank has no peer ", peer);
  }
};

} // namespace hvd
