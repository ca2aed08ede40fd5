#pragma once

#include "transport/matching.h"
#include "transport/shm/segment.h"

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

namespace hvd::shm {

struct Receive : MatchedReceive {
  /// `to_read`: once, wherever the message lies.
  Receive(Key key, int peer, at::Tensor buffer, bool to_read = false)
      : MatchedReceive(key, peer, std::move(buffer)), to_read(to_read) {}

  const bool to_read;
  bool asked_for = true; ///< no if this keeps a message until there is one
  std::vector<uint32_t> kept; ///< parts that were read before
  /// A whole message that is left in the sender's arena, as long as there is
  /// room for others. The receive is done.
  std::optional<Letter> lying;
  uint32_t message = 0; ///< the source's number for it
  /// That have come and nobody has begun to read. As a rule there are none, and
  /// then, other than a deque, a list has no memory.
  std::list<Letter> parts;
  bool reading = false; ///< a thread is at it
};

using ReceivePtr = std::shared_ptr<Receive>;

/// Brings letters and receives together, in the order of both.
///
/// Not thread-safe.
class Mailbox {
 public:
  /// Returns the parts of its message that were kept until now.
  std::vector<uint32_t> post(const ReceivePtr& receive);
  void deliver(int source, const Letter& letter);

  /// It gets no message, unless one has come.
  void withdraw(const MatchedReceive& receive) {
    std::erase_if(
        posted_, [&](const auto& posted) { return posted.get() == &receive; });
  }

  /// One that has parts to read and that no thread is at; null if there is
  /// none.
  ReceivePtr next_readable();

  /// Its message, if it lies in the sender's arena, stays there until it is
  /// acknowledged.
  void claim(const ReceivePtr& receive);

  /// Whether messages are left in arenas and not claimed.
  bool takes_room() const {
    return !lying_.empty();
  }

  /// Makes them readable like all else; returns whether there is any.
  bool make_room();

  /// Makes what no receive is posted for readable, if it is in an arena;
  /// returns whether there is any.
  bool keep_unclaimed();

  /// Whether a receive of the user's waits for a message or a part of one.
  bool awaits_users_message() const;

 private:
  /// A message that no receive is posted for.
  struct Unclaimed {
    int source;
    Letter first;
    ReceivePtr keeper; ///< if it is copied from the sender's arena
  };

  void begin(const ReceivePtr& receive, int source, const Letter& first);
  void add(const ReceivePtr& receive, const Letter& letter);
  void keep(Unclaimed& message);

  std::deque<ReceivePtr> posted_;
  std::deque<ReceivePtr> begun_; ///< not done when last looked at
  std::deque<ReceivePtr> lying_; ///< done, and not claimed
  std::deque<Unclaimed> unclaimed_;
};

/// Whether a thread may read from it now.
inline bool is_readable(const Receive& receive) {
  return !receive.parts.empty() && !receive.reading;
}

} // namespace hvd::shm
