#pragma once

#include "transport/transport.h"

#include <array>
#include <cstddef>
#include <vector>

namespace hvd {

/// All-to-all of small frames: every rank gives one frame of bytes and gets
/// everyone's. A round is post(), then collect().
///
/// Receives for the next two rounds are always posted ahead, so a frame leaves
/// as soon as its sender has it: one network latency a round. Not thread-safe.
class FrameLane {
 public:
  /// `capacity`: the most bytes in a frame; it sets the memory, 2n - 1 of them.
  FrameLane(Transport& transport, int64_t capacity);

  /// Where this rank writes its frame before post().
  std::byte* outgoing();

  /// Sends the first `bytes` of outgoing() to every peer.
  void post(int64_t bytes);

  /// Waits for the round; returns the frame of each rank, this one's included,
  /// valid until the next post().
  std::vector<const std::byte*> collect(Deadline deadline);

 private:
  struct Slot {
    std::vector<at::Tensor> buffers; ///< by rank; undefined for this one
    RequestPtr arrival;
  };

  void post_receives(Slot& slot);

  Transport& transport_;
  at::Tensor outgoing_;
  at::Tensor last_sent_; ///< the part of it that went last
  std::array<Slot, 2> slots_;
  uint64_t round_ = 0;
  RequestPtr departure_;
};

} // namespace hvd
