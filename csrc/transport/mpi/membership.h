#pragma once

#include "transport/mpi/calls.h"

#include <functional>
#include <memory>
#include <vector>

namespace hvd::mpi {

/// This rank's part in a group: its communicators, and the word by which the
/// others hear that it leaves. MPI itself tells nobody: a process that has left
/// may go on, or wait for the others at MPI's end.
///
/// The word is a message. MPI may give a communicator's id to a later one,
/// which would receive what the first one did not, so this has to last until
/// all others have left, too: see World::retire().
///
/// Threads: every member may be called from any thread, but of leave(), tell()
/// and dissolve() one at a time.
class Membership {
 public:
  /// Of these ranks of `world`, which all make it with that tag, and no other
  /// group at that time with it or the next. This one is at place `rank`.
  Membership(
      Communicator& world,
      const std::vector<int>& ranks,
      int rank,
      int tag);

  /// As that, while `check` is called now and then, which throws to give up.
  /// MPI cannot: a thread stays behind there, and what it needs. `world` lives
  /// as long.
  static std::unique_ptr<Membership> make(
      Communicator& world,
      const std::vector<int>& ranks,
      int rank,
      int tag,
      const std::function<void()>& check);

  /// For the group's own messages, by tags other than kLeaveTag.
  Communicator& own() const {
    return *own_;
  }
  /// For the user's.
  Communicator& users() const {
    return *users_;
  }

  static constexpr int kLeaveTag = 0;

  /// Tells the others; what this rank has sent before arrives before that, but
  /// for parts of it that have taken another way. Not those that may have
  /// ended: to send to such a one crashes MPICH 5 over TCP. Idempotent.
  void leave(const std::function<bool(int)>& may_have_ended);

  /// Tells those whom leave() has not, of these ranks of `world`, which are
  /// there.
  void tell(const std::vector<int>& present);

  /// Whether that peer has told this rank, which has not left.
  bool has_left(int peer) const;

  /// Whether one of them has.
  bool has_any_left() const;

  /// Once this rank has told the others: frees the communicators if they have,
  /// too. Returns whether it did.
  bool dissolve();

 private:
  const std::vector<int> ranks_; ///< of `world`, by their places here
  const std::unique_ptr<Communicator> own_;
  const std::unique_ptr<Communicator> users_;
  std::vector<int> others_; ///< until leave()
  std::vector<int> owed_; ///< since then, who has yet to be told
  const MessagesPtr words_; ///< to them and from them, since then
};

} // namespace hvd::mpi
