#pragma once

#include "transport/matching.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/mailbox.h"

#include <sys/epoll.h>

#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

namespace hvd {

/// Ranks of different hosts by TCP. Each pair has a connection for each network
/// that is to be used, its rails.
///
/// Whoever waits for a message reads what has come for anyone in this process,
/// so a short one takes no change of threads on its way. Where long messages or
/// the user's take longer a thread does, whether or not anybody waits; it also
/// looks for short ones now and then, which may fill a socket.
///
/// A short message leaves at once. A long one waits until the receiver has a
/// place for it, so what comes is copied once, by the system. Its bytes go by
/// the rail that has the least to send; all else goes by the first, in order.
class TcpTransport final : public MatchingTransport {
 public:
  /// `sockets`: by rank, of its rails, as many for each, connected,
  /// non-blocking and taken over; none for this one. `ranks_per_core`: how many
  /// ranks of this host share a core. `patience`: a host that is silent for
  /// longer is lost.
  TcpTransport(
      int rank,
      const std::vector<std::vector<int>>& sockets,
      double ranks_per_core,
      std::chrono::milliseconds patience);
  ~TcpTransport() override;

  const char* name() const override {
    return "tcp";
  }
  /// Each rail has a part of what would be one message.
  int64_t segment_bytes() const override;
  bool is_gone(int peer) const override;
  void abort() noexcept override;
  void leave() noexcept override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  class TcpRequest;

  struct Rail {
    Rail(int peer, int socket) : peer(peer), connection(socket) {}

    const int peer;
    tcp::Connection connection;
    bool is_watched_for_room = false;
  };
  using RailPtr = std::unique_ptr<Rail>;

  /// What is known of another rank; of this one, nothing.
  struct Peer {
    std::vector<RailPtr> rails;
    std::list<tcp::SendPtr> held; ///< not asked for yet
    std::list<tcp::Header> asked; ///< for, before they are sent
    bool is_gone = false; ///< and all that it sent has been read
    bool is_missed = false; ///< by one that has given up
    Farewell farewell = Farewell::None;
    Lead lead;
  };

  RequestPtr start(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      KeyOf key_of) override;
  void withdraw(const MatchedReceive& receive) override {
    mailbox_.withdraw(receive);
  }
  void wait(TcpRequest& request, Deadline deadline);
  void give_up(TcpRequest& request);

  static std::vector<Peer> take_over(
      const std::vector<std::vector<int>>& sockets);

  // All of these are called with `mutex_` held.
  void post(const tcp::ReceivePtr& receive);
  void dispatch(const tcp::SendPtr& send);
  void answer(const tcp::SendPtr& send, const tcp::Header& request);
  Rail& emptiest_rail(const Peer& peer);
  void ask(int peer, const tcp::ReceivePtr& receive);
  void say(int peer, const tcp::Header& header);
  void queue(Rail& rail, const tcp::SendPtr& send);
  void write(Rail& rail);
  void read(Rail& rail);
  static void shut(Peer& peer);
  tcp::ReceivePtr take(int peer, const tcp::Header& header);
  /// Waits until something can be read or written, and does that; or until
  /// another thread has done so.
  void turn(Lock& lock, std::chrono::microseconds spin, Deadline until);
  /// Does what can be done at once, but where a thread waits for the sockets.
  void look();
  void give_up_silent_peers();
  /// Nothing more comes of it.
  void lose(int peer);
  /// Reads the last words of all that have closed their connection.
  void hear_out();
  /// Returns whether a rank has ended.
  bool serve(const epoll_event* events, int count);
  bool any_open(c10::function_ref<bool(const tcp::Connection&)> is) const;
  /// Whether something is yet to be sent, or was asked for.
  bool is_busy() const;
  bool is_moving() const;
  void move_in_background();
  void move();

  Farewell farewell_of(int peer) const override {
    return peers_[peer].farewell;
  }
  bool has_left(int peer) const override;

  std::vector<Peer> peers_; ///< by rank; first, for it owns the sockets
  const Descriptor epoll_;
  const std::chrono::microseconds spin_;
  const std::chrono::milliseconds patience_;

  mutable std::mutex mutex_; ///< guards peers_, and all below
  tcp::Mailbox mailbox_;
  tcp::Connection::Buffer buffer_;
  size_t answered_ = 0;
  /// A thread waits for the sockets. What others do meanwhile that may end a
  /// request must wake it.
  bool driving_ = false;
  Clock::time_point last_look_; ///< at them
  std::condition_variable driven_; ///< for the others that wait
  bool resting_ = false; ///< the thread has nothing to do
  std::condition_variable wanted_; ///< for the thread
  std::thread thread_; ///< made when first needed
};

} // namespace hvd
