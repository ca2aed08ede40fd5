#pragma once

#include "transport/mpi/mpi.h"

#include <list>
#include <memory>
#include <mutex>

namespace hvd {

/// The user's receives, in the order of their calls, until MPI has them. MPI
/// gets one from any rank once its message is there, as one from the rank that
/// has sent it: over several hosts MPICH loses messages for those from any rank
/// (5.0.2, by UCX). Later ones of that tag, whose message it may be, wait
/// behind it.
///
/// Threads: every member may be called from any thread.
class MpiTransport::Inbox {
 public:
  explicit Inbox(mpi::Communicator& users) : users_(users) {}

  /// `peer`: or Messages::kAnyPeer. `pending` is touched here until holds()
  /// says no, or remove() was called, and then by its owner alone.
  void add(
      std::weak_ptr<Pending> pending,
      const at::Tensor& buffer,
      int peer,
      int tag);

  /// Gives MPI what it may have by now. Throws TransportError.
  void post();

  /// Whether MPI has yet to get that one, after a look.
  bool holds(const Pending& pending);

  void remove(const Pending& pending);

 private:
  struct Receive {
    std::weak_ptr<Pending> pending;
    at::Tensor buffer;
    int peer;
    int tag;
  };

  void post_ready();

  mpi::Communicator& users_;
  std::mutex mutex_; ///< guards what follows; only who has it receives
  std::list<Receive> receives_;
};

} // namespace hvd
