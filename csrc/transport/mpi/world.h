#pragma once

#include "transport/mpi/membership.h"
#include "transport/mpi/pmi.h"

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

namespace hvd::mpi {

/// MPI in this process. It can be started only once, so every group is a part
/// of one world, which stays when they are gone.
///
/// Threads: every member may be called from any thread.
class World {
 public:
  struct Place {
    std::string name; ///< of the world; empty where a launcher made it
    int rank;
    int size;
    bool any_threads; ///< whether threads may call at once
    bool cuda_aware; ///< see Library
  };

  static World& instance();

  /// Opens a libmpi, as Library does; a second time, the one that MPI was
  /// started with stays.
  Library open(const std::vector<std::string>& candidates);

  /// Where this process is, if MPI runs, whoever has started it. Throws
  /// c10::ValueError where it ran and cannot again.
  std::optional<Place> place();

  /// Starts MPI among the processes that a launcher has started. Returns when
  /// all of them have.
  void start_launched();

  /// Starts MPI among ranks that meet in a store.
  void start_unlaunched(
      c10::intrusive_ptr<c10d::Store> store,
      PmiResponder::Place place);

  /// Of all processes; MPI runs.
  Communicator& communicator();

  /// False once MPI was finalised, and in a process forked off.
  bool is_usable();

  /// Whether this process has finalised MPI, which it does at its end.
  bool has_ended() const {
    return running_ == nullptr;
  }

  /// MPI is not finalised as long as this is held.
  std::shared_lock<std::shared_mutex> hold() {
    return std::shared_lock(in_use_);
  }

  /// Keeps what MPI may still read or write until the process ends, because
  /// nothing can be done about it.
  void abandon(std::shared_ptr<void> buffers);

  /// Dissolves a group that this rank has left as soon as it can be: when it or
  /// a later one is handed over here.
  void retire(std::unique_ptr<Membership> membership);

  /// Whether processes wait for each other at MPI's end, so that who has left a
  /// group is still there; not so without a launcher.
  bool ends_together();

  /// These ranks are about to make a group, so they live: has those of groups
  /// that this rank has left hear of it if they have yet to.
  void meet(const std::vector<int>& ranks);

 private:
  World() = default;
  void finalise_at_exit();
  void finalise();
  void start();
  void adopt();

  std::shared_mutex in_use_; ///< before `mutex_`
  std::mutex mutex_; ///< guards all below
  std::optional<Library> library_;
  std::unique_ptr<Calls> calls_;
  std::unique_ptr<PmiResponder> responder_;
  std::unique_ptr<Communicator> communicator_; ///< null until MPI runs
  std::atomic<Calls*> running_{nullptr}; ///< until MPI is finalised here
  Place place_{};
  std::atomic<int> depth_{0}; ///< of forks, where MPI runs
  std::vector<std::shared_ptr<void>> abandoned_;
  std::list<std::unique_ptr<Membership>> retired_;
};

} // namespace hvd::mpi
