#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "transport/transport.h"

#include <limits>
#include <mutex>
#include <unordered_set>

namespace hvd {

/// The stock ProcessGroupGloo as a transport, by its point-to-point messages
/// alone: they leave from the calling thread, where a collective of Gloo's
/// would first change to a worker thread, and they can be told apart by tag.
class GlooTransport final : public Transport {
 public:
  /// `gloo`: connected, and used by nobody else.
  explicit GlooTransport(c10::intrusive_ptr<c10d::Backend> gloo);

  const char* name() const override {
    return "gloo";
  }
  RequestPtr exchange(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      const Lane& lane) override;
  RequestPtr exchange_frames(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives) override;
  RequestPtr send(const at::Tensor& buffer, int peer, int tag) override;
  RequestPtr recv(const at::Tensor& buffer, int peer, int tag) override;
  RequestPtr recv_any(const at::Tensor& buffer, int tag) override;
  int max_tag() const override {
    return kFirstOwnTag - 1;
  }
  void abort() noexcept override;

 private:
  class GlooRequest;

  // The upper half of the tags is ours, the lower half the user's.
  static constexpr int kFirstOwnTag = 1 << 30;
  static constexpr int kAbortTag = std::numeric_limits<int>::max();
  static constexpr int kFrameTag = kAbortTag - 1;

  static int tag_of(const Lane& lane, const at::Tensor& buffer);
  /// `tag`: of each buffer.
  template <typename TagOf>
  RequestPtr start(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      TagOf tag_of);

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  std::once_flag aborting_;
  std::mutex mutex_; ///< guards what follows
  bool aborted_ = false;
  std::unordered_set<GlooRequest*> requests_; ///< all that there are
};

} // namespace hvd
