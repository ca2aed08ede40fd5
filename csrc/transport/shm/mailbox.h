#pragma once

#include "transport/matching.h"
#include "transport/shm/segment.h"

#include <deque>
#include <memory>

namespace hvd::shm {

struct Receive : MatchedReceive {
  using MatchedReceive::MatchedReceive;

  uint32_t message = 0; ///< the source's number for it
  std::deque<Letter> parts; ///< that have come and nobody has begun to read
  bool reading = false; ///< a thread is at it
};

using ReceivePtr = std::shared_ptr<Receive>;

/// Brings letters and receives together, in the order of both.
///
/// Not thread-safe.
class Mailbox {
 public:
  void post(const ReceivePtr& receive);
  void deliver(int source, const Letter& letter);

  /// One that has parts to read and that no thread is at; null if there is
  /// none.
  ReceivePtr next_readable();

  /// Whether a receive of the user's waits for a message or a part of one.
  bool awaits_users_message() const;

 private:
  /// A message that no receive is posted for. What lies in the sender's arena
  /// is kept, or nothing else could be put there.
  struct Unclaimed {
    int source;
    Letter first;
    ReceivePtr kept; ///< null for what is in the letter or the sender's memory
  };

  void add(const ReceivePtr& receive, const Letter& letter);
  Unclaimed keep(int source, const Letter& first);

  std::deque<ReceivePtr> posted_;
  std::deque<ReceivePtr> begun_; ///< not done when last looked at
  std::deque<Unclaimed> unclaimed_;
};

/// Whether a thread may read from it now.
inline bool is_readable(const Receive& receive) {
  return !receive.parts.empty() && !receive.reading;
}

} // namespace hvd::shm
