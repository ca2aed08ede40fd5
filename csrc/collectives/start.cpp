#include "collectives/running.h"

#include <c10/util/Exception.h>

namespace hvd {

RunningPtr start(const Collective& collective, Transport& transport) {
  switch (collective.signature.verb) {
    case Verb::Allreduce:
      if (transport.hosts().have_levels()) {
        return start_hierarchical_allreduce(collective, transport);
      }
      return is_compressed(collective)
          ? start_compressed_allreduce(collective, transport)
          : start_allreduce(collective, transport);
    case Verb::SparseAllreduce:
      return start_sparse_allreduce(collective, transport);
    case Verb::Reduce:
      return start_reduce(collective, transport);
    case Verb::ReduceScatter:
      return start_reduce_scatter(collective, transport);
    case Verb::Broadcast:
      return start_broadcast(collective, transport);
    case Verb::Allgather:
    case Verb::Gather:
    case Verb::Scatter:
    case Verb::Alltoall:
    case Verb::Barrier:
      return start_move(collective, transport);
  }
  TORCH_INTERNAL_ASSERT(
      false, "no algorithm for ", name(collective.signature.verb));
}

void finish_all(const std::vector<RunningPtr>& running, Deadline deadline) {
  for (const auto& one : running) {
    one->advance(deadline);
  }
  for (const auto& one : running) {
    one->finish(deadline);
  }
}

Lane first_lane(const Collective& collective) {
  return {collective.seq, collective.signature.hash(collective.seq), 0};
}

} // namespace hvd
