#pragma once

#include "transport/attendant.h"
#include "transport/mpi/mpi.h"

#include <c10/core/DeviceGuard.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

namespace hvd {

/// Not thread-safe, but for is_done() and give_up(): who holds the request, or
/// has taken the messages over from it, is one thread at a time.
class MpiTransport::Pending
    : public std::enable_shared_from_this<MpiTransport::Pending> {
 public:
  explicit Pending(mpi::MessagesPtr messages)
      : messages_(std::move(messages)) {}

  /// In parts of that size, the same on both sides.
  void send(const at::Tensor& buffer, int peer, int tag, int64_t part_bytes);
  void receive(const at::Tensor& buffer, int peer, int tag, int64_t part_bytes);
  /// Whole, once the inbox lets MPI have it. `peer`: or Messages::kAnyPeer.
  void receive_by(Inbox& inbox, const at::Tensor& buffer, int peer, int tag);

  /// Whether all is done; asks MPI.
  bool test();
  /// The same, after all that MPI can do at once, and for so long.
  bool test_for(Clock::duration time);
  /// Gives up what can be; returns whether nothing is under way then.
  bool cancel();

  /// From now on until it is done somebody sees to it.
  void attended_by(Attendant& attendant) {
    absence_.emplace(attendant);
  }
  bool is_attended() const {
    return absence_.has_value();
  }

  /// Nobody is to wait for it any more.
  void give_up() {
    given_up_ = true;
  }
  bool is_given_up() const {
    return given_up_;
  }

  bool is_done() const {
    return is_done_;
  }
  size_t done() const {
    return messages_->done();
  }
  int awaited_peer() const {
    return inbox_ != nullptr ? awaited_in_inbox_ : messages_->awaited_peer();
  }
  int source() const {
    return messages_->source();
  }
  /// What is awaited, for messages.
  std::string describe() const;

 private:
  void keep(const at::Tensor& buffer);

  const mpi::MessagesPtr messages_;
  std::vector<at::Tensor> buffers_;
  /// Of buffers that are not on the host: MPI may want it to be the thread's.
  std::optional<c10::Device> device_;
  Inbox* inbox_ = nullptr; ///< where MPI may not have the receive yet
  int awaited_in_inbox_ = mpi::Messages::kNone;
  std::optional<Attendant::Absence> absence_;
  bool is_done_ = false;
  std::atomic<bool> given_up_{false};
};

} // namespace hvd
