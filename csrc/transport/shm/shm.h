#pragma once

#include "transport/matching.h"
#include "transport/shm/mailbox.h"
#include "transport/shm/outbox.h"
#include "transport/shm/peers.h"

#include <condition_variable>
#include <mutex>
#include <thread>

namespace hvd {

/// Ranks of one host by memory that they share.
///
/// Each rank has a segment that all others map. What a rank sends is announced
/// by a letter in the receiver's segment, which holds a short message and says
/// where a longer one lies: in the sender's arena, or in its own memory, from
/// where the receiver copies it by cross-memory attach. So there is one copy,
/// or two, and the thread that waits for a message makes the last.
///
/// There is no thread but the callers'. Whoever waits also does what others in
/// this process have yet to: reads for their receives, writes their sends. Only
/// where a send has found no room, or a message to the user is not there yet,
/// and nobody waits does a thread see to it.
class ShmTransport final : public MatchingTransport {
 public:
  /// What is known of a rank, its own entry included.
  struct Rank {
    int number; ///< in the group, for messages
    int segment; ///< file descriptor, which stays the caller's
    pid_t pid; ///< -1 for this rank itself
    int life; ///< see shm::Peers; of this rank, what others hear its end by
    bool reads_memory; ///< whether it can read this process's memory
  };

  /// `rank`: the place of this one among `ranks`, whose lives are taken over
  /// also where this throws. Every rank has initialised its segment.
  /// `ranks_per_core`: how many of them share a core.
  ShmTransport(int rank, const std::vector<Rank>& ranks, double ranks_per_core);
  ~ShmTransport() override;

  /// Makes the segment of this rank ready for the others to map.
  static void initialise(int segment, int size);

  const char* name() const override {
    return "shm";
  }
  bool shares_memory() const override {
    return true;
  }
  /// What arrives is still in the core's second-level cache when it is folded.
  int64_t segment_bytes() const override {
    return 256 * 1024;
  }
  int64_t segments_ahead() const override {
    return 2;
  }
  bool moves_by_itself() const override {
    return false;
  }
  ArrivalsPtr receive(
      const std::vector<int>& peers,
      int64_t bytes,
      const Lane& lane) override;
  void attend(Deadline until) override;
  bool is_gone(int peer) const override;
  void abort() noexcept override;
  void leave() noexcept override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  class ShmRequest;
  class ShmArrivals;

  RequestPtr start(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      KeyOf key_of) override;
  void withdraw(const MatchedReceive& receive) override {
    mailbox_.withdraw(receive);
  }
  Farewell farewell_of(int peer) const override;
  bool has_left(int peer) const override {
    return is_gone(peer);
  }
  int number_of(int peer) const override {
    return numbers_[peer];
  }
  void post(const shm::ReceivePtr& receive);
  void wait(ShmRequest& request, Deadline deadline);
  void move_until_done(Lock& lock, ShmRequest& request, Deadline deadline);
  void give_up(ShmRequest& request);
  /// Of a receive that is done, and claimed.
  const void* message_of(const shm::Receive& receive) const;
  /// What has been claimed is not needed any more.
  void release(const ShmRequest& request) noexcept;

  shm::Bell& bell() const;
  /// Takes in what has come and writes what there is room for; returns whether
  /// something had come.
  bool progress();
  /// Does one thing that can be done at once for any request; returns whether
  /// there was any.
  bool serve(Lock& lock);
  void read_next_part(Lock& lock, shm::Receive& receive);
  /// How many copy it from the sender's own memory.
  int threads_for(const shm::Letter& part) const;
  /// Whether the bell rings soon.
  bool rings_soon(uint32_t seen) const;
  /// Until it rings, but not long if others may wait for room meanwhile.
  void sleep(Lock& lock, uint32_t seen, Deadline until);
  /// Throws TransportError if what was just read of the peer's own memory may
  /// have been freed before: a peer says that it goes before it frees anything.
  void check_kept(int peer) const;
  /// Sees to what is under way, or rests for as long as a full ring may go
  /// unnoticed.
  void move_on(Lock& lock);
  void tell_of_leaving();
  void deliver_in_background();
  void deliver(Lock& lock);

  const std::vector<int> numbers_; ///< of the ranks, in the group
  const shm::Peers peers_; ///< before what may throw
  const std::vector<shm::Segment> segments_;
  const std::chrono::microseconds spin_;
  const bool has_core_; ///< each rank has one to itself

  std::mutex mutex_; ///< guards all below
  shm::Mailbox mailbox_;
  shm::Outbox outbox_;
  bool delivering_ = false; ///< the thread runs
  std::thread delivery_;
  std::condition_variable ended_; ///< for that thread: closing or aborted
};

} // namespace hvd
