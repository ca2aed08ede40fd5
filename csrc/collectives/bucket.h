#pragma once

#include "collectives/running.h"

#include <vector>

namespace hvd {

/// Bytes that an all_reduce takes in a bucket: it ends where a block of its
/// codec does, so what it is encoded to does not depend on its place.
int64_t bucket_bytes(const Collective& collective);

/// Starts all_reduces of one dtype, op and codec as one. Each is packed into
/// `buffer`, and unpacked into its output when the whole is done.
///
/// `members`: outlive the result. `buffer`: flat, of their dtype, of all their
/// bucket_bytes(); free again when the result is done.
RunningPtr start_bucket(
    std::vector<const Collective*> members,
    const at::Tensor& buffer,
    Transport& transport);

} // namespace hvd
