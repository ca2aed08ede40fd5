#pragma once

#include "transport/transport.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

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

/// An exchange sends no empty messages.
inline std::vector<Transfer> not_empty(const std::vector<Transfer>& all) {
  std::vector<Transfer> some;
  std::copy_if(
      all.begin(), all.end(), std::back_inserter(some), [](const auto& one) {
        return one.buffer.numel() > 0;
      });
  return some;
}

} // namespace hvd
