#pragma once

#include "transport/mpi/library.h"
#include "transport/transport.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/// What the transport needs of MPI, whatever the library's types. Failures are
/// TransportErrors that name the call and have MPI's own text.
namespace hvd::mpi {

/// Messages that are waited for together. Buffers are MPI's until test() has
/// said so, or for ever. Not thread-safe.
class Messages {
 public:
  static constexpr int kAnyPeer = -1;
  static constexpr int kNone = -2;

  Messages() = default;
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;
  virtual ~Messages() = default;

  /// At most kMostBytes.
  virtual void send(
      const std::byte* from,
      int64_t bytes,
      int peer,
      int tag) = 0;
  virtual void receive(std::byte* to, int64_t bytes, int peer, int tag) = 0;

  /// Lets MPI move on; true once all are done, or cancelled.
  virtual bool test() = 0;

  /// Gives up receives that nothing has arrived for.
  virtual void cancel_receives() = 0;

  /// How many test() has found done, from the first on.
  virtual size_t done() const = 0;

  /// The peer of the first that is not; kNone if all are.
  virtual int awaited_peer() const = 0;
  virtual bool awaits_receive() const = 0;

  /// Who sent what was received last.
  virtual int source() const = 0;

  /// Of one message; MPI's counts are ints. Whole pages, so that parts of a
  /// longer one are aligned.
  static constexpr int64_t kMostBytes = (int64_t{1} << 31) - (1 << 20);
};

using MessagesPtr = std::unique_ptr<Messages>;

/// Threads: every member may be called from any thread.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  /// Does not free: see there.
  virtual ~Communicator() = default;

  virtual int rank() = 0;
  virtual int size() = 0;
  virtual int max_tag() = 0;
  virtual MessagesPtr messages() = 0;

  /// Who of that peer, or of all, has sent a message of that tag, which stays
  /// where it is; -1 if nobody has. Lets MPI move on.
  virtual int probe(int tag, int peer = Messages::kAnyPeer) = 0;

  /// Of these ranks of this one, which all call it with that tag, and no other.
  /// Its errors are returned.
  virtual std::unique_ptr<Communicator> create(
      const std::vector<int>& ranks,
      int tag) = 0;

  /// Once all its messages are done, on all ranks.
  virtual void free() = 0;
};

/// One library, bound.
///
/// Threads: every member may be called from any thread; where MPI was not
/// started for that, calls take turns.
class Calls {
 public:
  Calls() = default;
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  virtual ~Calls() = default;

  virtual bool is_initialised() = 0;
  virtual bool is_finalised() = 0;

  /// Starts MPI, for any threads if the library can.
  virtual void initialise() = 0;
  virtual void finalise() = 0;

  /// Asks what threads MPI was started for, by whomever, and takes turns if it
  /// has to. Returns whether any threads may call.
  virtual bool settle_threads() = 0;

  /// All processes; MPI is started.
  virtual std::unique_ptr<Communicator> world() = 0;
};

/// Throws std::invalid_argument where the library lacks a call.
std::unique_ptr<Calls> bind(const Library& library);

} // namespace hvd::mpi
