#pragma once

#include "common/descriptor.h"
#include "transport/tcp/message.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>

namespace hvd::tcp {

/// A socket to another rank, and what is on its way there and back. Nothing
/// here blocks.
///
/// Not thread-safe.
class Connection {
 public:
  using Buffer = std::array<std::byte, 64 * 1024>;

  /// Called for each header; returns what the bytes after it are for, null
  /// where none follow.
  using OnHeader = std::function<ReceivePtr(const Header&)>;

  /// `socket`: connected, non-blocking; taken over.
  explicit Connection(int socket);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int socket() const {
    return socket_;
  }

  /// For the next write().
  void queue(SendPtr send);

  /// Writes what there is room for; finishes if nothing more can be sent.
  void write();

  /// Whether something waits for room.
  bool is_full() const {
    return !queue_.empty();
  }

  /// What is to be sent, or not yet confirmed, in bytes.
  int64_t backlog() const {
    return queued_ + unconfirmed();
  }

  /// Reads what has come, but no more at once than leaves others their turn.
  /// `buffer`: for what has no place of its own; its content is of no meaning.
  void read(Buffer& buffer, const OnHeader& on_header);

  /// Whether a part of a message has come, and not yet all.
  bool is_reading() const {
    return receive_ != nullptr;
  }

  /// Whether there may be more to read.
  bool is_open() const {
    return open_;
  }

  /// Whether the other side has closed it, with or without more to read.
  bool is_abandoned() const;

  /// Whether for so long the peer's system has answered nothing, though it was
  /// sent something. That of a process that is suspended answers.
  bool is_silent(std::chrono::milliseconds patience) const;

  /// What the peer's system has not yet confirmed to have, in bytes.
  int64_t unconfirmed() const;

  /// Ends it for both sides; what has not been read is lost.
  void shut();

  /// Sends nothing more, and says so. What the peer has sent can still be read.
  void finish();

 private:
  void sent(int64_t bytes);
  void take(const std::byte* bytes, int64_t count, const OnHeader& on_header);

  const Descriptor socket_;
  bool open_ = true;
  std::deque<SendPtr> queue_;
  int64_t queued_ = 0; ///< bytes of it
  std::array<std::byte, sizeof(Header)> header_;
  int64_t header_read_ = 0; ///< bytes of it
  ReceivePtr receive_; ///< whose bytes come now
};

} // namespace hvd::tcp
