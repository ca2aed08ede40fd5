#pragma once

#include <cstdint>
#include <string>

namespace hvd {

/// A send or receive of the user's.
struct MessageCall {
  bool sends = false;
  int32_t peer = -1; ///< rank; -1: a receive from any

  /// For messages, e.g. "recv from rank 1".
  std::string describe() const {
    return (sends ? "send to " : "recv from ") +
        (peer < 0 ? "any rank" : "rank " + std::to_string(peer));
  }
};

} // namespace hvd
