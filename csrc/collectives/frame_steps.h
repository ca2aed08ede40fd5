#pragma once

#include "common/hosts.h"
#include "transport/transport.h"

#include <cstddef>
#include <vector>

namespace hvd {

/// What one rank sends and receives in a step of an all-to-all of frames. It
/// keeps frames in the order in which it gets them, its own first, and sends
/// only from the first on.
struct FrameStep {
  struct Send {
    int peer;
    size_t frames; ///< the first so many of those that it has by then
  };
  struct Receive {
    int peer;
    std::vector<int> ranks; ///< whose frames come, in this order
  };

  std::vector<Send> sends;
  std::vector<Receive> receives;
};

/// The steps after which a rank has every rank's frame, each once. In all of
/// them together it sends to a peer at most once, and hears from it at most
/// once.
///
/// Between few hosts a frame goes straight to each. Between many, each step
/// makes of what a rank has four times as much (Bruck et al., "Efficient
/// algorithms for all-to-all communications in multiport message-passing
/// systems", 1997, with radix 4), so that of 64 hosts each writes 9 messages
/// rather than 63, in three steps rather than one. The ranks in one place on
/// their hosts do so, then those of a host: a frame goes to another host once,
/// not to each rank there.
std::vector<FrameStep> frame_steps(const Hosts& hosts, int rank);

/// The same for a transport's own rank. Where its hosts have no levels, each
/// rank counts as a host.
std::vector<FrameStep> frame_steps(const Transport& transport);

} // namespace hvd
