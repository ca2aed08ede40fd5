#pragma once

#include "collectives/frame_steps.h"
#include "transport/transport.h"

#include <array>
#include <cstddef>
#include <vector>

namespace hvd {

/// All-to-all of small frames: every rank gives one frame of bytes and gets
/// everyone's, by the steps of frame_steps(). A round is post(), then
/// collect().
///
/// Receives for the next two rounds are always posted ahead, so a frame leaves
/// as soon as its sender has it: one network latency a step. Not thread-safe.
class FrameLane {
 public:
  /// Bytes before a frame in a message, which begin with its length: as many as
  /// the widest element wants to be aligned to.
  static constexpr int64_t kPrefix = 16;

  /// `capacity`: the most bytes in a frame; it sets the memory, some 3n of
  /// them.
  FrameLane(Transport& transport, int64_t capacity);

  /// Where this rank writes its frame before post().
  std::byte* outgoing();

  /// Sends the first `bytes` of outgoing().
  void post(int64_t bytes);

  /// Waits for the round, and passes on what others are to get from this rank;
  /// returns the frame of each rank, this one's included, valid until the next
  /// post().
  std::vector<const std::byte*> collect(Deadline deadline);

 private:
  /// What goes out in a step: bundles, which are frames one behind the other,
  /// each with its length before it.
  struct Outgoing {
    std::vector<Transfer> bundles;
    RequestPtr departure;
  };
  struct Incoming {
    std::vector<Transfer> bundles;
    RequestPtr arrival;
  };
  using Slot = std::vector<Incoming>; ///< by step

  void post_receives(Slot& slot);
  void send(size_t step);
  /// Keeps a frame, for what it sends in the next step.
  void hold(const std::byte* prefix);

  /// Calls `visit(rank, prefix)` for each frame that came in a step.
  template <typename Visit>
  void for_each_frame(size_t step, const Slot& slot, Visit visit) const;

  Transport& transport_;
  const std::vector<FrameStep> steps_;
  at::Tensor held_; ///< the bundle of this rank's frame, and what it passes on
  std::vector<int64_t> ends_; ///< of the frames in it
  std::vector<Outgoing> outgoing_; ///< by step
  std::array<Slot, 2> slots_;
  uint64_t round_ = 0;
};

} // namespace hvd
