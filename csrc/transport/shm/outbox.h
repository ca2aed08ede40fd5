#pragma once

#include "transport/matching.h"
#include "transport/shm/arena.h"
#include "transport/shm/segment.h"
#include "transport/shm/staging.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace hvd::shm {

/// A message, or a part of a long one, to one or more peers.
struct Send {
  Key key;
  at::Tensor buffer; ///< the caller's; undefined once it is not needed
  int account = 0; ///< see Outbox::staged_
  std::vector<int> unread; ///< peers that have not received it
  std::vector<int> readers; ///< of them those that read it in the arena
  bool is_awaited = false; ///< until it has been read
  bool done = false; ///< nobody need wait for it any more
  Letter::Form form = Letter::Form::Inline;
  uint32_t id = 0;
  uint32_t message = 0;
  int64_t bytes = 0;
  int64_t total = 0; ///< bytes of the message
  std::optional<int64_t> staged; ///< offset in the arena

  bool needs(int peer) const {
    return std::ranges::count(unread, peer) > 0;
  }
};

using SendPtr = std::shared_ptr<Send>;

/// Writes letters into the peers' rings, and has them wait in order where there
/// is no room.
///
/// Not thread-safe.
class Outbox {
 public:
  /// `segments`: of all ranks; outlives this. `reads_memory`: whether a peer
  /// can read what is in this process, by rank. `segments_under_way`: to each
  /// peer, of a large tensor.
  Outbox(
      int rank,
      const std::vector<Segment>& segments,
      std::vector<bool> reads_memory,
      int64_t segments_under_way);

  /// Queues a message for the next flush(); returns its parts.
  std::vector<SendPtr> send(
      const Key& key,
      const at::Tensor& buffer,
      const std::vector<int>& to);

  /// Tells `peer` what has become of what it sent as `id`: Done, or Kept and
  /// later Done.
  void acknowledge(int peer, Letter::Form what, uint32_t id);

  /// `peer` has said that of what this rank sent as `id`.
  void acknowledged(int peer, Letter::Form what, uint32_t id);

  /// Writes what there is room for, and rings for all that was written; also
  /// this rank's own bell, for who waits for what had to wait itself.
  void flush();

  /// Whether something waits for room.
  bool is_waiting() const;

  /// Whether something does, or a peer has yet to read something from this
  /// process's own memory.
  bool is_busy() const;

 private:
  struct Acknowledgement {
    Letter::Form what;
    uint32_t id;
  };

  /// What waits for room on the way to a peer. Acknowledgements go first: they
  /// are what makes room in the peer's arena, so they must not wait for room in
  /// this one.
  struct Queue {
    std::deque<Acknowledgement> acknowledgements;
    std::deque<SendPtr> sends;
    bool is_awaited = false; ///< who has sent them may sleep until they go
  };

  SendPtr queue(
      const Key& key,
      Letter::Form form,
      const at::Tensor& buffer,
      const std::vector<int>& to);
  Letter::Form form_for(
      const Key& key,
      int64_t bytes,
      const std::vector<int>& to,
      bool is_awaited) const;
  int account_of(const std::vector<int>& to) const {
    return to.size() > 1 ? rank_ : to.front();
  }
  /// Whether so much more may be staged. If one peer could fill the arena, what
  /// it is late to read would keep messages from the others.
  bool has_room(int account, int64_t bytes) const;
  bool write(int peer, const Acknowledgement& acknowledgement);
  bool write(int peer, Send& send);
  bool stage(Send& send);

  const int rank_;
  const std::vector<Segment>& segments_;
  const std::vector<bool> reads_memory_;
  const int64_t aside_; ///< bytes of the longest message that is copied aside
  std::vector<Queue> queues_; ///< by peer
  std::vector<Lead> leads_; ///< by peer
  Arena arena_{Segment::kArenaBytes};
  /// Bytes in the arena, by who has yet to read them: a peer, or, under this
  /// rank's own number, several peers.
  std::vector<int64_t> staged_;
  StagingCopy copy_;
  std::map<uint32_t, SendPtr> unread_; ///< by id; not the inline ones
  uint32_t last_id_ = 0;
};

} // namespace hvd::shm
