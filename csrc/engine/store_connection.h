#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <memory>

namespace hvd {

/// A connection to the server of a store that no other code blocks in, made
/// when first used. torch's store waits without a limit for an answer, so each
/// use has a thread of its own: one that gets no answer is left behind, at most
/// one for each server, and ends whenever its answer comes.
///
/// Threads: every member may be called from any thread. Errors of the store are
/// swallowed: its host may be what has died.
class StoreConnection {
 public:
  explicit StoreConnection(c10::intrusive_ptr<c10d::Store> store);

  using Use = std::function<void(c10d::Store&)>;

  /// Returns whether `use` has come to its end; false after seconds at the
  /// latest, and at once while the store is known not to answer. Then `use` may
  /// still be running, so it owns all that it touches.
  bool run(Use use);

 private:
  struct Line;

  const c10::intrusive_ptr<c10d::Store> first_; ///< no other gets its address
  const std::shared_ptr<Line> line_;
};

/// The one to the server of `store` that all groups of the process share:
/// making one is dear, as torch's server looks each client's name up.
///
/// Threads: may be called from any thread.
std::shared_ptr<StoreConnection> second_connection(
    const c10::intrusive_ptr<c10d::Store>& store);

} // namespace hvd
