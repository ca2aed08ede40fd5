#pragma once

#include "collectives/reduce.h"
#include "common/hosts.h"

#include <vector>

namespace hvd {

// An all_reduce among several hosts with several ranks folds the ranks of each
// host, in order, and then the hosts, in order. It does so in whatever way the
// tensor travels, or its sum would depend on what it was fused with.

/// What a host makes of its ranks' tensors: not rounded to 16 bits yet.
Reduction inside_host(const Signature& signature);

/// What becomes of that.
Reduction between_hosts(const Collective& collective);

/// The whole, of an all_reduce. `sources`: of each rank, in rank order.
void reduce_by_host(
    const Hosts& hosts,
    const Collective& collective,
    const std::vector<const void*>& sources,
    const at::Tensor& out);

} // namespace hvd
