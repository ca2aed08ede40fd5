#pragma once

#include "transport/tcp/message.h"

#include <deque>
#include <optional>
#include <vector>

namespace hvd::tcp {

/// Brings messages and receives together, in the order of both.
///
/// Not thread-safe.
class Mailbox {
 public:
  /// `size`: ranks.
  explicit Mailbox(int size);

  /// Returns the rank to ask for the message, by the number that the receive
  /// has now, if it has to be asked for and somebody has it.
  std::optional<int> post(const ReceivePtr& receive);

  /// It gets no message, unless one has come.
  void withdraw(const MatchedReceive& receive);

  /// A rank sends nothing of what it was asked for.
  void forget(int source) {
    asked_[source].clear();
  }

  /// A rank has a message of the user's; returns what to ask for it for, null
  /// if nothing yet.
  ReceivePtr offer(int source, const Header& header);

  /// Bytes begin to come; returns what they are for, null if they pretend to
  /// have been asked for.
  ReceivePtr begin(int source, const Header& header);

  /// Whether there are receives of long messages or of the user's.
  bool awaits_long_or_users() const;

  /// Whether there are receives of short messages of exchanges.
  bool awaits_short() const;

 private:
  /// A message that no receive is posted for.
  struct Unclaimed {
    int source;
    Header header;
    ReceivePtr kept; ///< null for an offer
  };

  using Posted = std::deque<ReceivePtr>;

  void ask(int source, const ReceivePtr& receive);
  ReceivePtr take_posted(int source, const Key& key);
  ReceivePtr take_asked(int source, const Header& header);
  static ReceivePtr take(Posted& posted, Posted::iterator found);
  bool has_posted(Key::Kind kind) const;

  std::vector<Posted> posted_; ///< by peer
  Posted posted_for_any_;
  std::vector<Posted> asked_; ///< by peer
  std::deque<Unclaimed> unclaimed_; ///< as they have come
  uint64_t posts_ = 0;
  uint32_t asks_ = 0;
};

} // namespace hvd::tcp
