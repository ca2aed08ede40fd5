#pragma once

#include "common/collective.h"
#include "transport/device.h"

#include <vector>

namespace hvd {

/// Puts all_reduces of one dtype, op, codec and device on the current stream,
/// as one: several are packed, and what has a codec travels encoded. Returns
/// when that is done; the outputs are there for what follows on the stream.
void launch_allreduces(
    const std::vector<const Collective*>& members,
    DeviceTransport& transport);

/// The encoded form, as CompressedAllreduce has it on the host: a shard of all
/// their blocks for each rank, contributions by an all_to_all, sums in fp32 in
/// rank order, encoded again and gathered.
void launch_compressed_allreduces(
    const std::vector<const Collective*>& members,
    DeviceTransport& transport);

} // namespace hvd
