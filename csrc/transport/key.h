#pragma once

#include "transport/transport.h"

#include <cstdint>

namespace hvd {

/// Which receive a message is for, where that can be said at length.
struct Key {
  enum class Kind : uint32_t { Exchange, Frame, User };

  Kind kind = Kind::User;
  uint32_t tag = 0; ///< of the user, or the stage of the lane
  uint64_t seq = 0; ///< of the lane
  uint64_t fingerprint = 0; ///< of the lane, mixed with the size

  bool operator==(const Key&) const = default;

  static Key of(const Lane& lane, const at::Tensor& buffer) {
    constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
    return {
        Kind::Exchange,
        static_cast<uint32_t>(lane.stage),
        lane.seq,
        lane.fingerprint ^ (buffer.nbytes() * kOdd)};
  }
  static Key of_frame() {
    return {Kind::Frame, 0, 0, 0};
  }
  static Key of_user(int tag) {
    return {Kind::User, static_cast<uint32_t>(tag), 0, 0};
  }
};

} // namespace hvd
