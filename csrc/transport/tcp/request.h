#pragma once

#include "transport/tcp/tcp.h"

#include <algorithm>
#include <string>
#include <vector>

namespace hvd {

/// What a verb has posted.
class TcpTransport::TcpRequest final : public Request {
 public:
  explicit TcpRequest(TcpTransport& transport) : transport_(transport) {}

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
    const auto comes_from = [&](const tcp::ReceivePtr& receive) {
      return !receive->done &&
          (receive->peer == peer || receive->source == peer);
    };
    const auto goes_to = [&](const tcp::SendPtr& send) {
      return !send->done && send->peer == peer;
    };
    return std::ranges::any_of(receives, comes_from) ||
        std::ranges::any_of(sends, goes_to);
  }

  bool needs_any() const {
    return std::ranges::any_of(receives, [](const auto& one) {
      return one->source == tcp::Receive::kAny &&
          one->peer == tcp::Receive::kAny;
    });
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

  void throw_error() const {
    for (const auto& receive : receives) {
      if (!receive->error.empty()) {
        throw TransportError(
            "tcp: receive from rank " + std::to_string(receive->source) + ": " +
            receive->error);
      }
    }
  }

  std::vector<tcp::ReceivePtr> receives;
  std::vector<tcp::SendPtr> sends;

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
