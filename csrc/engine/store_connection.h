#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

namespace hvd {

/// A connection to the server of `store` that no other code blocks in. All
/// groups of the process share it: making one is dear, as torch's server looks
/// each client's name up.
///
/// Throws what the store does; soon where its server is gone, and at once where
/// that has just been found.
///
/// Threads: may be called from any thread.
std::shared_ptr<c10d::Store> second_connection(
    const c10::intrusive_ptr<c10d::Store>& store);

} // namespace hvd
