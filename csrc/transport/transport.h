#pragma once

#include <ATen/core/Tensor.h>

#include "common/clock.h"
#include "common/hosts.h"
#include "transport/scratch.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <ranges>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace hvd {

/// The library under a transport failed, or a peer did.
class TransportError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The deadline passed first.
class TransportTimeout : public TransportError {
 public:
  using TransportError::TransportError;
};

/// A message cannot come or go: its peer has left or died, or this rank has
/// given it up. The transport goes on with all others.
class RankLeft : public TransportError {
 public:
  using TransportError::TransportError;
};

/// A verb under way. Destroying it before it is done is safe only after
/// Transport::abort(), but for a receive of the user's.
class Request {
 public:
  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  virtual ~Request() = default;

  /// Blocks until the buffers are the caller's again; returns at once when it
  /// has done so before. Throws TransportError; but for RankLeft, the
  /// transport is of no use after that.
  virtual void wait(Deadline deadline) = 0;

  /// Of a message of the user's, from any thread: ends wait() by RankLeft,
  /// unless it is done.
  virtual void give_up() noexcept {}

  /// Of a finished receive: the rank that sent.
  virtual int source() const {
    return -1;
  }
};

using RequestPtr = std::unique_ptr<Request>;

/// Messages that are received to be read once, wherever they lie.
class Arrivals : public Request {
 public:
  /// Once waited for, and as long as this lives: the message of the peer at
  /// that place of the list; of no use if messages are empty.
  virtual const void* data(size_t place) const = 0;
};

using ArrivalsPtr = std::unique_ptr<Arrivals>;

/// Which exchange a message belongs to. Messages of different lanes never meet,
/// so exchanges under way together stay apart, and ranks that run different
/// collectives wait for each other rather than read each other's bytes.
struct Lane {
  uint64_t seq; ///< place of the collective in the group's sequence
  uint64_t fingerprint; ///< of the collective
  int stage; ///< 0 or 1

  Lane next_stage() const {
    return {seq, fingerprint, stage + 1};
  }
};

/// One message of an exchange. An empty one is not sent.
struct Transfer {
  int peer;
  at::Tensor buffer;
};

/// A view of those that are sent: `transfers | not_empty`.
inline constexpr auto not_empty = std::views::filter(
    [](const Transfer& one) { return one.buffer.numel() > 0; });

/// Bytes that a rank has sent.
struct Sent {
  uint64_t network = 0;
  uint64_t shared_memory = 0; ///< to ranks of its host
};

/// Moves flat, contiguous buffers between the ranks of one group.
///
/// Threads: every member may be called from any thread; but the ranks must
/// start the verbs of a group in one order, and that is the engine's task.
/// Returning: a verb returns at once with a Request; buffers belong to the
/// transport until Request::wait() returns. The transport keeps the tensors
/// alive. Devices: memory of the host, and of what takes_memory_of() says; no
/// stream knows of a verb, so the device has to be done with the buffers.
class Transport {
 public:
  /// `hosts`: where messages inside a host are cheaper than between hosts.
  Transport(int rank, int size, Hosts hosts = {});
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  int rank() const {
    return rank_;
  }
  int size() const {
    return size_;
  }
  /// All ranks but this one.
  const std::vector<int>& others() const {
    return others_;
  }
  const Hosts& hosts() const {
    return hosts_;
  }

  virtual const char* name() const = 0;

  /// Whether sending is no more than copying: then fewer bytes gain nothing.
  virtual bool shares_memory() const {
    return false;
  }

  /// Whether requests go on without a thread that waits for one of them.
  virtual bool moves_by_itself() const {
    return true;
  }

  /// Whether buffers may be in the memory of such a device.
  virtual bool takes_memory_of(c10::DeviceType device) const {
    return device == at::kCPU;
  }

  /// Does what a waiting thread would for all requests, until then.
  virtual void attend(Deadline /*until*/) {}

  /// Whether the peer is known to have left or died.
  virtual bool is_gone(int /*peer*/) const {
    return false;
  }

  /// What large tensors are cut into, so that folding one part hides behind
  /// the transfer of the next: long enough that a message's cost does not show
  /// (in 256 KB, 16 MB took up to a quarter longer over Gloo).
  virtual int64_t segment_bytes() const {
    return 1024 * 1024;
  }

  /// How many segments a rank posts receives for ahead of the one that it waits
  /// for: enough that a sender has the notice of the receive before it has the
  /// data, and with many ranks not more memory than that needs.
  virtual int64_t segments_ahead() const {
    return std::clamp(16 / std::max(size_ - 1, 1), 2, 8);
  }

  /// How many it has sent to each peer ahead of that one: a peer may be as far
  /// ahead with its receives as this rank with its own. Half as many cost 64 MB
  /// over Gloo 4 to 9 %, more gained nothing.
  int64_t segments_under_way() const {
    return 2 * segments_ahead();
  }

  /// So far.
  virtual Sent sent() const {
    return shares_memory() ? Sent{0, sent_bytes_} : Sent{sent_bytes_, 0};
  }

  /// Host memory for what arrives and is not the caller's.
  virtual ScratchPool& scratch() {
    return scratch_;
  }

  /// Messages to and from any peers at once. Between two ranks they match by
  /// lane and size, in order.
  virtual RequestPtr exchange(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      const Lane& lane) = 0;

  /// Receives of an exchange, a message of so many bytes from each, for those
  /// who need not have them in a place of their own.
  virtual ArrivalsPtr receive(
      const std::vector<int>& peers,
      int64_t bytes,
      const Lane& lane);

  /// An exchange on a lane of its own, where a message may be shorter than the
  /// buffer that receives it.
  virtual RequestPtr exchange_frames(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives) = 0;

  /// The user's own messages, apart from every lane. `tag` is one that
  /// `max_tag()` allows.
  virtual RequestPtr send(const at::Tensor& buffer, int peer, int tag) = 0;
  virtual RequestPtr recv(const at::Tensor& buffer, int peer, int tag) = 0;
  virtual RequestPtr recv_any(const at::Tensor& buffer, int tag) = 0;
  virtual int max_tag() const = 0;

  /// A wait of this rank has timed out, though none for this transport: what
  /// abort() tells the peers, if it can.
  virtual void note_timeout() noexcept {}

  /// Makes every pending and later verb fail, here and, as connections close,
  /// on the peers. Idempotent.
  virtual void abort() noexcept = 0;

  /// No verb comes after it, in this group: ends what goes on without one, and
  /// lets the peers hear that this rank has left. Where that must wait for a
  /// message of the user's, or always does (gloo), they hear of it when this is
  /// destroyed. Idempotent.
  virtual void leave() noexcept {}

 protected:
  std::atomic<uint64_t> sent_bytes_{0};

 private:
  const int rank_;
  const int size_;
  const std::vector<int> others_;
  const Hosts hosts_;
  ScratchPool scratch_;
};

/// The same to every other rank.
inline std::vector<Transfer> to_all(
    const Transport& transport,
    const at::Tensor& buffer) {
  std::vector<Transfer> sends;
  for (const int peer : transport.others()) {
    sends.push_back({peer, buffer});
  }
  return sends;
}

/// From every other rank. `buffers`: by rank, as a list or as rows.
template <typename Buffers>
std::vector<Transfer> from_all(
    const Transport& transport,
    const Buffers& buffers) {
  std::vector<Transfer> receives;
  for (const int peer : transport.others()) {
    receives.push_back({peer, buffers[peer]});
  }
  return receives;
}

} // namespace hvd
