#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace hvd {

/// A barrier in which rank 0 names those that did not come in time, all of them
/// with `wait_all_ranks`, else the first. It goes through the store, so it
/// works where the transport is what hangs.
///
/// `prefix`: of the keys; the same on all ranks, and new for every barrier.
/// Throws DistBackendError on rank 0 and on every rank that came.
void monitored_barrier(
    c10d::Store& store,
    const std::string& prefix,
    int rank,
    int size,
    std::chrono::milliseconds timeout,
    bool wait_all_ranks);

} // namespace hvd
