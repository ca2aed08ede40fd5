#pragma once

#include "common/collective.h"
#include "common/hosts.h"

#include <cstddef>
#include <vector>

namespace hvd {

/// Small collectives are one exchange: every rank gives everyone its
/// contribution, and each computes its own result from all of them. These
/// functions say what a contribution is and what follows from them; results
/// are the same bits on every rank.

/// The most bytes that any rank contributes, a number all ranks agree on; -1
/// for a verb whose ranks cannot know (all_to_all with splits of its own, or a
/// sparse all_reduce).
int64_t contribution_bytes(const Collective& collective);

/// memcpy, but an empty tensor may have no address.
void copy_bytes(void* to, const void* from, int64_t bytes);

/// Writes this rank's contribution to `out`; returns its bytes.
int64_t write_contribution(const Collective& collective, std::byte* out);

/// Computes the outputs. `contributions`: of each rank, in rank order.
void apply_contributions(
    const Collective& collective,
    int rank,
    const Hosts& hosts,
    const std::vector<const std::byte*>& contributions);

} // namespace hvd
