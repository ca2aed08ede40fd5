#pragma once

#include "transport/matching.h"

#include <cstdint>
#include <memory>
#include <type_traits>

namespace hvd::tcp {

/// What stands before the bytes of a message. Ranks have one byte order.
struct Header {
  enum class Kind : uint32_t {
    Bytes, ///< which follow
    Offer, ///< of a message of the user's, which follows when asked for
    Request, ///< asks for a message
    /// Nothing else comes. `bytes`: a rank that was lost, or -1; `number`: one
    /// more than a rank that timed out, or 0.
    GaveUp,
  };

  Kind kind = Kind::Bytes;
  /// Of a Request, and of the bytes that answer it: by another rail they may
  /// come before those that were asked for first. 0: nobody has asked.
  uint32_t number = 0;
  Key key;
  int64_t bytes = 0;
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 40);

/// Longer messages leave when the receiver has asked for them, which it does
/// once it has a place for them; shorter ones at once, but for what Lead says,
/// and are kept for their receive if they must be. Frames always have one.
constexpr int64_t kLong = 128 * 1024;

inline bool is_long(const Key& key, int64_t bytes) {
  return key.kind != Key::Kind::Frame && bytes > kLong;
}

struct Send {
  /// `buffer`: undefined where no bytes follow.
  Send(int peer, Header header, at::Tensor buffer = {})
      : peer(peer), header(header), buffer(std::move(buffer)) {}

  const int peer;
  Header header;
  const at::Tensor buffer;
  int64_t written = 0; ///< of the header and the bytes
  bool done = false; ///< the buffer is the caller's again

  int64_t length() const {
    return static_cast<int64_t>(sizeof(Header) + buffer_bytes());
  }
  bool needs(int peer) const {
    return peer == this->peer;
  }
  size_t buffer_bytes() const {
    return buffer.defined() ? buffer.nbytes() : 0;
  }
};

using SendPtr = std::shared_ptr<Send>;

struct Receive : MatchedReceive {
  using MatchedReceive::MatchedReceive;

  uint64_t place = 0; ///< in the order of receives
  uint32_t number = 0; ///< among those that have been asked for

  int64_t missing() const {
    return total - read;
  }
};

using ReceivePtr = std::shared_ptr<Receive>;

} // namespace hvd::tcp
