#pragma once

#include "transport/shm/shm.h"

#include <algorithm>
#include <string>
#include <vector>

namespace hvd {

/// What a verb has posted.
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
    return std::ranges::all_of(receives, done) &&
        std::ranges::all_of(sends, done);
  }

  /// Whether it waits for what the peer has yet to do.
  bool needs(int peer) const {
    const auto comes_from = [&](const shm::ReceivePtr& receive) {
      return !receive->done &&
          (receive->peer == peer || receive->source == peer);
    };
    const auto goes_to = [&](const shm::SendPtr& send) {
      return !send->done &&
          std::count(send->unread.begin(), send->unread.end(), peer) > 0;
    };
    return std::ranges::any_of(receives, comes_from) ||
        std::ranges::any_of(sends, goes_to);
  }

  bool needs_any() const {
    return std::ranges::any_of(receives, [](const auto& one) {
      return one->source == shm::Receive::kAny &&
          one->peer == shm::Receive::kAny;
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

  std::vector<shm::ReceivePtr> receives;
  std::vector<shm::SendPtr> sends;

 private:
  ShmTransport& transport_;
};

} // namespace hvd
