#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "common/collective.h"
#include "common/message_call.h"
#include "engine/store_connection.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hvd {

/// What the ranks of a group tell each other through its store when something
/// is wrong: where each one is. Costs nothing while all is well.
///
/// Threads: one at a time. Store errors are swallowed: the store's host may be
/// what has died. No call waits longer than seconds for it, but for the
/// constructor, which waits and throws as the store does.
class Witness {
 public:
  /// `store`: keys are this group's own. `group`: for messages.
  Witness(
      const c10::intrusive_ptr<c10d::Store>& store,
      int rank,
      int size,
      std::string group);

  /// A message that a thread waits for.
  struct Message : MessageCall {
    uint64_t number = 0; ///< of all that were waited for, from 1; 0: no message
  };

  struct Call {
    bool waiting = false; ///< for number `seq`; else for no collective
    uint64_t seq = 0;
    Signature signature; ///< of that, or of the last one called
    uint64_t submitted = 0; ///< collectives this rank has called; may be 0
    Message message; ///< the one waited for longest
  };

  /// Of an all_to_all, which no signature holds: elements by rank.
  struct Splits {
    uint64_t seq = 0; ///< of the all_to_all
    std::vector<int64_t> sends;
    std::vector<int64_t> expects;

    static Splits of(const Collective& all_to_all);
  };

  struct Place : Call {
    Splits splits; ///< of the all_to_all that it waits for, or of its last
  };

  /// Lets the others know that this rank is at `place`.
  void tell(const Place& place);

  /// Whether a rank's process is known to be gone: it will say no more.
  using Gone = std::function<bool(int rank)>;

  /// Where each rank last said it was.
  std::vector<std::optional<Place>> heard();

  /// The same, but waits up to about `patience` for all that are not gone to
  /// say that they have called so many collectives.
  std::vector<std::optional<Place>> ask(
      uint64_t submitted,
      std::chrono::milliseconds patience,
      const Gone& gone);

  /// Why those who wait for number `seq` wait for ever, from the answers of
  /// heard(): they called different collectives, or one expects another number
  /// of elements than it is sent. Nothing if no such reason is known.
  static std::optional<std::string> difference(
      uint64_t seq,
      const std::vector<std::optional<Place>>& places);

  /// One sentence from the answers of ask() or heard(). `submitted`: how many
  /// collectives all should have called.
  std::string report(
      uint64_t submitted,
      const std::vector<std::optional<Place>>& places,
      const Gone& gone) const;

  /// One sentence on the ranks that have not called number `seq`.
  std::string missing(
      uint64_t seq,
      const std::vector<std::optional<Place>>& places) const;

  const std::string& group() const {
    return group_;
  }

 private:
  std::string key(int rank) const;

  std::shared_ptr<StoreConnection> connection_; ///< below all prefixes
  std::string name_; ///< the group's, in that store
  std::optional<Place> told_;
  bool answers_ = true; ///< the store, when last used
  int rank_;
  int size_;
  std::string group_;
};

} // namespace hvd
