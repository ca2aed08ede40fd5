#pragma once

#include "transport/shm/segment.h"

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <string>

namespace hvd::shm {

/// A receive, from its call to its end; or a message that is kept until there
/// is one for it.
struct Receive {
  static constexpr int kAny = -1;

  Receive(Key key, int peer, at::Tensor buffer)
      : key(key), peer(peer), buffer(std::move(buffer)) {}

  const Key key;
  const int peer; ///< or kAny
  const at::Tensor buffer;
  int source = kAny; ///< once its first letter is here
  uint32_t message = 0; ///< the source's number for it
  std::deque<Letter> parts; ///< that have come and nobody has begun to read
  int64_t read = 0; ///< bytes, up to the part that is being read
  int64_t missing = 0; ///< bytes not read
  bool reading = false; ///< a thread is at it
  bool done = false;
  std::string error; ///< when done; empty if all is well
  std::shared_ptr<Receive>
      heir; ///< what a kept message goes to when it is done
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

  /// Takes note that a part has been read, with an error unless that is empty.
  static void add_read(Receive& receive, int64_t bytes, std::string error);

 private:
  /// A message that no receive is posted for. What lies in the sender's arena
  /// is kept, or nothing else could be put there.
  struct Unclaimed {
    int source;
    Letter first;
    ReceivePtr kept; ///< null for what is in the letter or the sender's memory
  };

  void begin(const ReceivePtr& receive, int source, const Letter& first);
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
