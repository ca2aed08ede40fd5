#pragma once

#include "transport/attendant.h"
#include "transport/transport.h"

#include <memory>
#include <optional>
#include <string>

namespace hvd {

/// Several hosts with several ranks: what ranks of this host exchange goes by
/// the memory that they share (near), the rest over the network (far).
///
/// A half of a request may be moved only by those who wait for such a half, and
/// other ranks may wait for this one to move it, while it waits for the other
/// half, which comes from a rank that waits for one of those. So while a thread
/// waits for one half, an attendant does what threads that wait for the other
/// would, unless that moves by itself.
class RoutedTransport final : public Transport {
 public:
  /// `near`: of the ranks of this host, in rank order; null for a rank that is
  /// alone there. `far`: of all ranks.
  RoutedTransport(
      std::unique_ptr<Transport> near,
      std::unique_ptr<Transport> far,
      Hosts hosts);

  const char* name() const override {
    return name_.c_str();
  }
  /// What goes inside a host has an attendant.
  bool moves_by_itself() const override {
    return far_->moves_by_itself();
  }
  bool is_gone(int peer) const override;
  Sent sent() const override;
  RequestPtr exchange(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      const Lane& lane) override;
  RequestPtr exchange_frames(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives) override;

  // All of the user's messages are far ones: a receive from any rank must see
  // those of every rank, in one place.
  RequestPtr send(const at::Tensor& buffer, int peer, int tag) override;
  RequestPtr recv(const at::Tensor& buffer, int peer, int tag) override;
  RequestPtr recv_any(const at::Tensor& buffer, int tag) override;
  int max_tag() const override {
    return far_->max_tag();
  }
  void note_timeout() noexcept override;
  void abort() noexcept override;
  void leave() noexcept override;

 private:
  class RoutedRequest;
  struct Halves {
    std::vector<Transfer> near;
    std::vector<Transfer> far;
  };

  bool is_near(int peer) const;
  Halves split(const std::vector<Transfer>& transfers) const;
  template <typename Start>
  RequestPtr start(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      Start start_half);
  RequestPtr far_only(RequestPtr request);

  const std::unique_ptr<Transport> near_;
  const std::unique_ptr<Transport> far_;
  const std::string name_;
  std::optional<Attendant> near_attendant_; ///< where there is need of one
  std::optional<Attendant> far_attendant_; ///< likewise
};

} // namespace hvd
