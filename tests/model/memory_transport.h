#pragma once

#include "engine/agreement.h"
#include "random.h"
#include "transport/transport.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace hvd::model {

/// The wires between the ranks of one simulated group. A courier carries each
/// message from the sender's buffer to the receiver's some time after both are
/// posted, in any order that the contract of Transport allows.
///
/// Threads: every member may be called from any thread.
class Network {
 public:
  /// `pauses`: how often the courier and the callers dawdle, in percent.
  Network(int size, uint64_t seed, int pauses, Hosts hosts = {});
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  ~Network();

  int size() const {
    return static_cast<int>(frames_.size());
  }

  const Hosts& hosts() const {
    return hosts_;
  }

  /// Delivers nothing until release().
  void hold();
  void release();

  /// The frames that each rank has sent.
  std::vector<std::vector<FrameHeader>> frames();

  /// What broke the contract of Transport, empty if nothing did.
  std::string complaint();

  /// What waits in the mailboxes.
  std::string describe();

  /// The most messages that have waited there at once, sent or to be received.
  size_t most_waiting();

 private:
  friend class MemoryTransport;
  class Posting;

  /// One side of a message.
  struct Message {
    at::Tensor buffer;
    bool is_frame = false;
    bool done = false;
    bool dropped = false; ///< its request is gone
  };
  using MessagePtr = std::shared_ptr<Message>;

  /// Messages of one key match in order. Frames have lane 0 and size -1.
  struct Key {
    int from;
    int to;
    uint64_t seq;
    uint64_t fingerprint;
    int stage;
    int64_t bytes;

    bool operator<(const Key& other) const {
      const auto fields = [](const Key& k) {
        return std::tie(k.from, k.to, k.seq, k.fingerprint, k.stage, k.bytes);
      };
      return fields(*this) < fields(other);
    }
  };
  struct Mailbox {
    std::deque<MessagePtr> sends;
    std::deque<MessagePtr> receives;
  };
  struct Pair {
    MessagePtr send;
    MessagePtr receive;
  };

  RequestPtr post(
      int rank,
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      const Lane* lane);
  bool is_own_frame(int rank, const Transfer& send) const;
  MessagePtr put(const Key& key, const at::Tensor& buffer, bool is_send);
  void carry(const Pair& pair);
  void deliver();
  void abort();
  void pause();

  const int pauses_;
  const Hosts hosts_;
  std::mutex mutex_; ///< guards all that follows
  Random random_;
  std::condition_variable arrived_;
  std::condition_variable matched_;
  std::map<Key, Mailbox> mailboxes_;
  size_t waiting_ = 0; ///< in the mailboxes
  size_t most_waiting_ = 0;
  std::vector<Pair> pairs_; ///< on the way
  std::vector<std::vector<FrameHeader>> frames_; ///< by rank
  std::string complaint_;
  bool held_ = false;
  bool aborted_ = false;
  bool stop_ = false;
  std::thread courier_;
};

class MemoryTransport : public Transport {
 public:
  MemoryTransport(std::shared_ptr<Network> network, int rank)
      : Transport(rank, network->size(), network->hosts()),
        network_(std::move(network)) {}

  const char* name() const override {
    return "memory";
  }
  /// Short, so that the tensors of the model have many.
  int64_t segment_bytes() const override {
    return 1024;
  }
  RequestPtr exchange(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      const Lane& lane) override {
    for (const auto& send : sends) {
      sent_bytes_ += send.buffer.nbytes();
    }
    return network_->post(rank(), sends, receives, &lane);
  }
  RequestPtr exchange_frames(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives) override {
    return network_->post(rank(), sends, receives, nullptr);
  }
  RequestPtr send(const at::Tensor& buffer, int peer, int tag) override;
  RequestPtr recv(const at::Tensor& buffer, int peer, int tag) override;
  RequestPtr recv_any(const at::Tensor& buffer, int tag) override;
  int max_tag() const override {
    return 0;
  }
  void abort() noexcept override {
    network_->abort();
  }

 private:
  const std::shared_ptr<Network> network_;
};

} // namespace hvd::model
