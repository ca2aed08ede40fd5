#pragma once

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace hvd::model {

// Each ends the process where something is wrong.

/// Collectives that share memory wait for each other, and no others do.
void test_memory_in_use();

/// What a call gives is used where it is, unless it cannot be.
void test_in_place(const c10::intrusive_ptr<c10d::Store>& store);

/// How many bytes of large collectives are started, and how many advance,
/// before the first of them is finished.
void test_most_under_way();

} // namespace hvd::model
