#pragma once

#include "transport/transport.h"

#include <array>
#include <cstddef>
#include <vector>

namespace hvd {

/// All-to-all of small frames: every rank gives one frame of bytes and gets
/// everyone's. A round is post(), then collect().
///
/// Where hosts have levels a frame goes to one rank of each other host, which
/// passes it on to its neighbours with its own: a host sends each of its frames
/// to another once, not to each rank there. Elsewhere a frame goes straight to
/// everyone.
///
/// Receives for the next two rounds are always posted ahead, so a frame leaves
/// as soon as its sender has it: one network latency a round. Not thread-safe.
class FrameLane {
 public:
  /// Bytes before a frame in a message, which begin with its length: as many as
  /// the widest element wants to be aligned to.
  static constexpr int64_t kPrefix = 16;

  /// `capacity`: the most bytes in a frame; it sets the memory, some 2n of
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
  /// Frames one behind the other, each with its length before it.
  struct Bundle {
    std::vector<int> ranks; ///< whose frames they are, the sender's first
    at::Tensor bytes;
  };
  /// One bundle to several peers.
  struct Outgoing {
    std::vector<int> peers;
    Bundle bundle;
    at::Tensor sent; ///< the part of it that went last
    RequestPtr departure;
  };
  /// A bundle from each of several peers.
  struct Incoming {
    std::vector<Bundle> bundles;
    RequestPtr arrival;
  };
  struct Slot {
    Incoming given; ///< a frame from each giver
    Incoming passed_on; ///< what the neighbours were given, and their own
  };

  void post_receives(Slot& slot);
  void post(Outgoing& outgoing, int64_t bytes);
  void post(Incoming& incoming);
  int64_t pack(const Incoming& given);

  Transport& transport_;
  Outgoing own_; ///< this rank's frame
  Outgoing passed_on_; ///< that, and what it was given
  std::array<Slot, 2> slots_;
  uint64_t round_ = 0;
};

} // namespace hvd
