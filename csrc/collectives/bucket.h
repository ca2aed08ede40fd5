#pragma once

#include "collectives/running.h"

#include <vector>

namespace hvd {

/// Starts all_reduces of one dtype and op as one. Each is packed into `buffer`,
/// and unpacked into its output when the whole is done.
///
/// `members`: outlive the result. `buffer`: flat, of their dtype, as long as
/// all of them together; free again when the result is done.
RunningPtr start_bucket(
    std::vector<const Collective*> members,
    const at::Tensor& buffer,
    Transport& transport);

} // namespace hvd
