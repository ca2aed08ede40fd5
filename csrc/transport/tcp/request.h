#pragma once

#include "transport/tcp/tcp.h"

#include <algorithm>

namespace hvd {

class TcpTransport::TcpRequest final
    : public MatchedRequest<tcp::Receive, tcp::Send> {
 public:
  explicit TcpRequest(TcpTransport& transport) : transport_(transport) {}

  void wait(Deadline deadline) override {
    transport_.wait(*this, deadline);
  }
  void give_up() noexcept override {
    transport_.give_up(*this);
  }

  /// Whether it is to go on though nobody waits for it. Frames always have
  /// somebody.
  bool is_left_alone() const {
    return any_under_way(
        [](const Key& key, size_t) { return key.kind != Key::Kind::Frame; });
  }

  /// Whether it is worth looking for it again and again.
  bool is_short() const {
    return !any_under_way([](const Key& key, size_t bytes) {
      return key.kind == Key::Kind::User ||
          tcp::is_long(key, static_cast<int64_t>(bytes));
    });
  }

 private:
  template <typename Is>
  bool any_under_way(Is is) const {
    const auto in_receives = [&](const tcp::ReceivePtr& one) {
      return !one->done && is(one->key, one->buffer.nbytes());
    };
    const auto in_sends = [&](const tcp::SendPtr& one) {
      return !one->done && is(one->header.key, one->buffer_bytes());
    };
    return std::ranges::any_of(receives, in_receives) ||
        std::ranges::any_of(sends, in_sends);
  }

  TcpTransport& transport_;
};

} // namespace hvd
