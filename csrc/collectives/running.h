#pragma once

#include "common/collective.h"
#include "transport/transport.h"

#include <memory>
#include <vector>

namespace hvd {

/// A collective under way. The Collective it was started from outlives it.
class Running {
 public:
  Running() = default;
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  virtual ~Running() = default;

  /// Blocks until the last messages are on their way: what others wait for no
  /// longer depends on this thread. Throws TransportError.
  virtual void advance(Deadline deadline) = 0;

  /// After advance(): blocks until the outputs are there. Throws
  /// TransportError.
  virtual void finish(Deadline deadline) = 0;
};

using RunningPtr = std::unique_ptr<Running>;

/// Finishes collectives that all ranks have started, overlapping their stages.
void finish_all(const std::vector<RunningPtr>& running, Deadline deadline);

/// Starts a collective that is too large for frames; returns at once.
RunningPtr start(const Collective& collective, Transport& transport);

// The families, one file each; start() chooses.
RunningPtr start_allreduce(const Collective&, Transport&);
RunningPtr start_compressed_allreduce(const Collective&, Transport&);
/// Where hosts have levels.
RunningPtr start_hierarchical_allreduce(const Collective&, Transport&);
RunningPtr start_sparse_allreduce(const Collective&, Transport&);
RunningPtr start_reduce(const Collective&, Transport&);
RunningPtr start_reduce_scatter(const Collective&, Transport&);
RunningPtr start_broadcast(const Collective&, Transport&);
/// allgather, gather, scatter, alltoall
RunningPtr start_move(const Collective&, Transport&);

/// The lane of a collective's first stage.
Lane first_lane(const Collective& collective);

} // namespace hvd
