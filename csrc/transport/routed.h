#pragma once

#include "transport/attendant.h"
#include "transport/shm/shm.h"
#include "transport/transport.h"

#include <memory>
#include <optional>

namespace hvd {

/// Several hosts with several ranks: what ranks of this host exchange goes by
/// the memory that they share (near), the rest over the network (far).
///
/// The far half of a request moves by itself, whoever waits. The near half is
/// moved by those who wait for it, and ranks of this host may wait for this one
/// to read what they have sent, while this one waits for a far rank that waits
/// for one of those. So while a thread waits for a far half an attendant does
/// what threads that wait for a near one would.
class RoutedTransport final : public Transport {
 public:
  /// `near`: of the ranks of this host, in rank order; null for a rank that is
  /// alone there. `far`: of all ranks.
  RoutedTransport(
      std::unique_ptr<ShmTransport> near,
      std::unique_ptr<Transport> far,
      Hosts hosts);

  const char* name() const override {
    return "shm+gloo";
  }
  bool is_gone(int peer) const override;
  uint64_t sent_bytes() const override;
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
  void abort() noexcept override;

 private:
  class RoutedRequest;
  /// Large messages want a waiting thread to read them; frames do not, and what
  /// is waited for last is usually here by then, without another sleep.
  enum class First { Near, Far };
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
      First first,
      Start start_half);
  RequestPtr far_only(RequestPtr request);

  const std::unique_ptr<ShmTransport> near_;
  const std::unique_ptr<Transport> far_;
  std::optional<Attendant> attendant_; ///< where there is a near half
};

} // namespace hvd
