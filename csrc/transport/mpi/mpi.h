#pragma once

#include "transport/attendant.h"
#include "transport/mpi/keeper.h"
#include "transport/mpi/membership.h"
#include "transport/mpi/world.h"
#include "transport/shm/peers.h"
#include "transport/transport.h"

#include <list>
#include <mutex>
#include <optional>

namespace hvd {

/// Ranks of one MPI world, by its point-to-point messages of bytes: sums and
/// what else MPI would compute are ours, in one order and for every dtype.
///
/// MPI has no thread: messages move while somebody asks for theirs. Whoever
/// waits asks with longer and longer pauses, so waiting ends in time and burns
/// no core. A message of the user's that nobody waits for has an attendant, and
/// what MPI puts off until it is called again a keeper.
///
/// Nothing makes MPI take a message back that is on its way to a rank that is
/// gone. Its buffers are kept then until the process ends.
class MpiTransport final : public Transport {
 public:
  /// What is known of a rank, its own entry included.
  struct Rank {
    int number; ///< in the world
    int life; ///< see shm::Peers; -1 for one on another host
    bool by_tcp; ///< on another host, and no network is known but that
  };

  /// `ranks`: by their numbers in the group; all of them make it now. `tag`:
  /// even, the same on all, and of no other group made at that time.
  /// `ranks_per_core`: how many ranks of this host share a core.
  /// `cuda_aware`: whether the library is on all of them. Throws TransportError
  /// if they have not come when `timeout` is over, or one of this host dies.
  MpiTransport(
      int rank,
      const std::vector<Rank>& ranks,
      int tag,
      double ranks_per_core,
      bool cuda_aware,
      std::chrono::milliseconds timeout);
  ~MpiTransport() override;

  const char* name() const override {
    return "mpi";
  }
  bool moves_by_itself() const override {
    return false;
  }
  bool takes_memory_of(c10::DeviceType device) const override {
    return device == at::kCPU || (device == at::kCUDA && cuda_aware_);
  }
  /// Also sees to the user's messages that were dropped.
  void attend(Deadline until) override;
  bool is_gone(int peer) const override;
  RequestPtr exchange(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      const Lane& lane) override;
  RequestPtr exchange_frames(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives) override;
  RequestPtr send(const at::Tensor& buffer, int peer, int tag) override;
  RequestPtr recv(const at::Tensor& buffer, int peer, int tag) override;
  RequestPtr recv_any(const at::Tensor& buffer, int tag) override;
  int max_tag() const override {
    return max_tag_;
  }
  void abort() noexcept override;
  void leave() noexcept override;

 private:
  class MpiRequest;
  /// One verb's messages, with what they need as long as they are under way.
  class Pending;
  /// What the user wants to receive, until MPI may have it.
  class Inbox;

  // Tags of our own messages, beside Membership's.
  static constexpr int kFrameTag = 1;
  static constexpr int kAbortTag = 2;
  static constexpr int kFirstLaneTag = 3;
  // 6 bits of the sequence and the stage keep collectives apart that are under
  // way at once, the rest of a tag those that differ between ranks.
  static constexpr int kPlaces = 128;

  // What a rank has sent takes no longer, once it has left. To some libraries a
  // message is sent when the system has all its parts, and those may go by
  // several links.
  static constexpr std::chrono::seconds kLinger{1};

  /// How a message goes: its tag, and what parts of it may have at most.
  struct Form {
    int tag;
    int64_t part_bytes;
  };

  std::unique_ptr<mpi::Membership> join(
      const std::vector<int>& numbers,
      int tag,
      Clock::duration timeout) const;
  int tag_of(const Lane& lane, const at::Tensor& buffer) const;
  template <typename FormOf>
  RequestPtr start(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      Clock::duration unseen,
      FormOf form_of);
  template <typename Post>
  RequestPtr start_users(Post post);

  void check_not_aborted() const;
  void check_open() const;
  void wait(Pending& pending, Deadline deadline);
  /// Whether it is done. Does not return where MPI has been finalised
  /// meanwhile.
  bool test(Pending& pending);
  /// Looks for what ends a wait other than its message. Throws TransportError,
  /// or RankLeft.
  void look_around(Pending& pending) const;
  bool has_left_or_died(int peer) const;
  /// Whether the peer has let this rank know that it leaves.
  bool has_left(int peer) const;
  /// Whether it has ended, or has said that it gives up, or leaves where who
  /// leaves may end.
  bool may_have_ended(int peer) const;
  /// Lets the others know that this one does.
  void tell_of_leaving() noexcept;
  /// Whether another rank has given up while this one was elsewhere: what it
  /// had sent before would be taken for success. Does nothing if that has been
  /// for less than `unseen`. Throws TransportError.
  void check_meanwhile(Clock::duration unseen);
  /// Notes in `gone_` what is_gone() says of each peer. Throws TransportError
  /// if one has given up.
  void note_who_is_gone();
  /// Throws RankLeft if it may have ended: to send to such a one crashes
  /// MPICH 5 over TCP.
  void check_receiver(int peer) const;
  /// Throws TransportError once another rank has said that it gives up.
  void check_notices() const;
  /// Of a request that is gone: for what was not waited for.
  void drop(std::shared_ptr<Pending> pending) noexcept;
  void cancel(const std::shared_ptr<Pending>& pending);
  /// Asks for what nobody waits for.
  void look_after() noexcept;

  const bool cuda_aware_;
  const shm::Peers peers_;
  const std::vector<int64_t> part_bytes_; ///< of exchanges, by peer
  std::unique_ptr<mpi::Membership> membership_; ///< until this is destroyed
  mpi::Communicator& own_; ///< for exchanges
  mpi::Communicator& users_;
  const std::unique_ptr<Inbox> inbox_; ///< of `users_`
  const int max_tag_;
  const int lane_tags_; ///< how many there are for one place in the sequence
  const std::chrono::microseconds spin_;
  std::atomic<bool> aborted_{false};
  std::atomic<Clock::duration> last_start_{Clock::duration::zero()};
  std::atomic<Clock::duration> last_note_{Clock::duration::zero()};
  std::vector<std::atomic<bool>> gone_; ///< by peer, when it was last noted

  std::mutex mutex_; ///< guards `dropped_`, and leaving
  std::list<std::shared_ptr<Pending>> dropped_; ///< the user's, under way
  std::optional<Attendant> attendant_; ///< uses all above
  std::optional<mpi::Keeper> keeper_; ///< likewise
};

} // namespace hvd
