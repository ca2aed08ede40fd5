#include "transport/tcp/connection.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hvd::tcp {

namespace {

// Many short messages in one call of the system.
constexpr size_t kParts = 32;

// Others may wait for the lock that is held meanwhile.
constexpr int64_t kReadAtOnce = 256 * 1024;

bool is_for_later() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

} // namespace

Connection::Connection(int socket) : socket_(socket) {}

void Connection::queue(SendPtr send) {
  queued_ += send->length();
  queue_.push_back(std::move(send));
}

void Connection::write() {
  while (!queue_.empty() && open_) {
    std::array<iovec, kParts> parts;
    size_t count = 0;
    const auto add = [&](const void* begin, size_t bytes, int64_t& skipped) {
      const auto skip = std::min(skipped, static_cast<int64_t>(bytes));
      skipped -= skip;
      if (skip < static_cast<int64_t>(bytes)) {
        auto* const at = static_cast<std::byte*>(const_cast<void*>(begin));
        parts[count++] = {at + skip, bytes - static_cast<size_t>(skip)};
      }
    };
    for (const auto& send : queue_) {
      if (count + 2 > kParts) {
        break;
      }
      int64_t skipped = send->written;
      add(&send->header, sizeof(Header), skipped);
      if (send->buffer_bytes() > 0) {
        add(send->buffer.const_data_ptr(), send->buffer_bytes(), skipped);
      }
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const auto bytes = sendmsg(socket_, &message, MSG_NOSIGNAL);
    if (bytes < 0) {
      if (!is_for_later()) {
        finish();
      }
      return;
    }
    sent(bytes);
  }
}

void Connection::sent(int64_t bytes) {
  queued_ -= bytes;
  while (bytes > 0) {
    auto& send = *queue_.front();
    const auto part = std::min(bytes, send.length() - send.written);
    send.written += part;
    bytes -= part;
    if (send.written == send.length()) {
      send.done = true;
      queue_.pop_front();
    }
  }
}

void Connection::read(Buffer& buffer, const OnHeader& on_header) {
  for (int64_t total = 0; open_ && total < kReadAtOnce;) {
    // What has a place goes there at once, and what follows into the buffer.
    std::byte* const to = receive_ ? receive_->next() : nullptr;
    const int64_t direct =
        to != nullptr ? std::min(receive_->missing(), kReadAtOnce - total) : 0;
    const std::array<iovec, 2> parts{
        {{to, static_cast<size_t>(direct)}, {buffer.data(), buffer.size()}}};
    const bool whole = !receive_ || direct == receive_->missing();
    const auto bytes = readv(
        socket_,
        direct > 0 ? parts.data() : parts.data() + 1,
        direct > 0 && whole ? 2 : 1);
    if (bytes <= 0) {
      open_ = bytes < 0 && is_for_later();
      return;
    }
    total += bytes;
    const auto placed = std::min<int64_t>(bytes, direct);
    if (placed > 0) {
      receive_->add(placed);
      if (receive_->done) {
        receive_ = nullptr;
      }
    }
    take(buffer.data(), bytes - placed, on_header);
  }
}

/// Bytes that have come into the buffer.
void Connection::take(
    const std::byte* bytes,
    int64_t count,
    const OnHeader& on_header) {
  while (count > 0 && open_) {
    int64_t used = 0;
    if (receive_) {
      used = std::min(count, receive_->missing());
      if (std::byte* const to = receive_->next()) {
        std::memcpy(to, bytes, static_cast<size_t>(used));
      }
      receive_->add(used);
    } else {
      used =
          std::min(count, static_cast<int64_t>(header_.size()) - header_read_);
      std::memcpy(
          header_.data() + header_read_, bytes, static_cast<size_t>(used));
      header_read_ += used;
      if (header_read_ == static_cast<int64_t>(header_.size())) {
        Header header;
        std::memcpy(&header, header_.data(), sizeof(header));
        header_read_ = 0;
        receive_ = on_header(header);
      }
    }
    if (receive_ && receive_->done) {
      receive_ = nullptr;
    }
    bytes += used;
    count -= used;
  }
}

bool Connection::is_abandoned() const {
  pollfd look{socket_, POLLRDHUP, 0};
  return open_ && poll(&look, 1, 0) > 0;
}

bool Connection::is_silent(std::chrono::milliseconds patience) const {
  tcp_info known{};
  socklen_t length = sizeof(known);
  if (getsockopt(socket_, IPPROTO_TCP, TCP_INFO, &known, &length) != 0) {
    return false;
  }
  // To a peer that has no room for more, nothing but probes go; each answer
  // sets their number back, and the first may not have had the time for one.
  const bool repeats = (known.tcpi_unacked > 0 && known.tcpi_retransmits > 0) ||
      known.tcpi_probes > 1;
  return repeats &&
      std::chrono::milliseconds(known.tcpi_last_ack_recv) > patience;
}

int64_t Connection::unconfirmed() const {
  int bytes = 0;
  return ioctl(socket_, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

void Connection::shut() {
  open_ = false;
  shutdown(socket_, SHUT_RDWR);
}

void Connection::finish() {
  queue_.clear();
  queued_ = 0;
  shutdown(socket_, SHUT_WR);
}

} // namespace hvd::tcp
