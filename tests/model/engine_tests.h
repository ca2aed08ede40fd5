#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace hvd::model {

// Each ends the process where something is wrong.

/// A hundred small all_reduces take three frames.
void test_burst(const c10::intrusive_ptr<c10d::Store>& store);

/// What one thread starts for another is finished: by its background thread, or
/// by the caller that waits for it.
void test_started_for_others(const c10::intrusive_ptr<c10d::Store>& store);

} // namespace hvd::model
