#include "memory_transport.h"

#include "collectives/frames.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace hvd::model {

namespace {

constexpr const char* kDropped = "a request was destroyed before it was done";

[[noreturn]] void no_messages() {
  throw TransportError("the model has no messages of the user");
}

} // namespace

class Network::Posting final : public Request {
 public:
  Posting(Network& network, std::vector<MessagePtr> messages)
      : network_(network), messages_(std::move(messages)) {}

  // Receives of frames are posted ahead, and left behind at the end.
  ~Posting() override {
    std::lock_guard<std::mutex> lock(network_.mutex_);
    for (const auto& message : messages_) {
      message->dropped = !message->done && !network_.aborted_;
      if (message->dropped && !message->is_frame) {
        network_.complaint_ = kDropped;
      }
    }
  }

  void wait(Deadline deadline) override {
    network_.pause();
    std::unique_lock<std::mutex> lock(network_.mutex_);
    for (const auto& message : messages_) {
      const bool over = network_.arrived_.wait_until(
          lock, deadline, [&] { return message->done || network_.aborted_; });
      if (!over) {
        throw TransportTimeout("memory: timed out");
      }
      if (!message->done) {
        throw TransportError("memory: aborted");
      }
    }
  }

 private:
  Network& network_;
  const std::vector<MessagePtr> messages_;
};

Network::Network(int size, uint64_t seed, int pauses, Hosts hosts)
    : pauses_(pauses), hosts_(std::move(hosts)), random_(seed), frames_(size) {
  courier_ = std::thread([this] { deliver(); });
}

Network::~Network() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  matched_.notify_one();
  courier_.join();
}

void Network::hold() {
  std::lock_guard<std::mutex> lock(mutex_);
  held_ = true;
}

void Network::release() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ = false;
  }
  matched_.notify_one();
}

std::vector<std::vector<FrameHeader>> Network::frames() {
  std::lock_guard<std::mutex> lock(mutex_);
  return frames_;
}

std::string Network::complaint() {
  std::lock_guard<std::mutex> lock(mutex_);
  return complaint_;
}

std::string Network::describe() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::ostringstream out;
  for (const auto& [key, mailbox] : mailboxes_) {
    const auto& [sends, receives] = mailbox;
    if (!sends.empty() || !receives.empty()) {
      out << "    " << key.from << " -> " << key.to << ", ";
      if (key.bytes < 0) {
        out << "frames";
      } else {
        out << "number " << key.seq << " stage " << key.stage << ", "
            << key.bytes << " bytes";
      }
      out << ": " << sends.size() << " sent, " << receives.size()
          << " receives posted\n";
    }
  }
  return out.str();
}

size_t Network::most_waiting() {
  std::lock_guard<std::mutex> lock(mutex_);
  return most_waiting_;
}

RequestPtr Network::post(
    int rank,
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives,
    const Lane* lane) {
  pause();
  std::vector<MessagePtr> messages;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) {
      throw TransportError("memory: aborted");
    }
    const auto add = [&](int from, int to, const at::Tensor& buffer, bool out) {
      Key key{from, to, 0, 0, 0, -1};
      if (lane != nullptr) {
        const auto bytes = static_cast<int64_t>(buffer.nbytes());
        key = {from, to, lane->seq, lane->fingerprint, lane->stage, bytes};
      }
      if (buffer.numel() > 0) {
        messages.push_back(put(key, buffer, out));
      }
    };
    for (const auto& [peer, buffer] : receives) {
      add(peer, rank, buffer, false);
    }
    for (const auto& [peer, buffer] : sends) {
      add(rank, peer, buffer, true);
    }
    if (lane == nullptr && !sends.empty() && is_own_frame(rank, sends[0])) {
      auto& header = frames_[rank].emplace_back();
      const auto* const frame =
          static_cast<const std::byte*>(sends[0].buffer.const_data_ptr());
      std::memcpy(&header, frame + FrameLane::kPrefix, sizeof(header));
    }
  }
  matched_.notify_one();
  return std::make_unique<Posting>(*this, std::move(messages));
}

/// Rather than what a rank passes on to its neighbours.
bool Network::is_own_frame(int rank, const Transfer& send) const {
  return !hosts_.have_levels() ||
      hosts_.host_of(rank) != hosts_.host_of(send.peer);
}

Network::MessagePtr Network::put(
    const Key& key,
    const at::Tensor& buffer,
    bool is_send) {
  auto message = std::make_shared<Message>();
  message->buffer = buffer;
  message->is_frame = key.bytes < 0;
  auto sent = message;
  // A transport may or may not have room to take a message before it is
  // received. Nobody may count on either.
  if (is_send && random_.chance(50)) {
    sent = std::make_shared<Message>();
    sent->buffer = at::empty(buffer.sizes(), buffer.options());
    std::memcpy(
        sent->buffer.mutable_data_ptr(),
        buffer.const_data_ptr(),
        buffer.nbytes());
    message->done = true;
  }
  auto& [sends, receives] = mailboxes_[key];
  (is_send ? sends : receives).push_back(sent);
  ++waiting_;
  while (!sends.empty() && !receives.empty()) {
    pairs_.push_back({std::move(sends.front()), std::move(receives.front())});
    sends.pop_front();
    receives.pop_front();
    waiting_ -= 2;
  }
  most_waiting_ = std::max(most_waiting_, waiting_);
  return message;
}

void Network::carry(const Pair& pair) {
  const auto& from = pair.send->buffer;
  const auto& to = pair.receive->buffer;
  if (pair.send->dropped || pair.receive->dropped) {
    complaint_ = kDropped;
    return;
  }
  if (from.nbytes() > to.nbytes()) {
    complaint_ = "a frame is longer than its receive";
    return;
  }
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  pair.send->done = true;
  pair.receive->done = true;
}

void Network::deliver() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    matched_.wait(lock, [&] { return stop_ || (!held_ && !pairs_.empty()); });
    if (stop_) {
      return;
    }
    if (pauses_ > 0) {
      Random random(random_.next());
      lock.unlock();
      random.pause(pauses_);
      lock.lock();
    }
    if (pairs_.empty()) {
      continue; // aborted meanwhile
    }
    std::swap(random_.pick(pairs_), pairs_.back());
    carry(pairs_.back());
    pairs_.pop_back();
    arrived_.notify_all();
  }
}

void Network::abort() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
    pairs_.clear();
  }
  arrived_.notify_all();
}

void Network::pause() {
  if (pauses_ == 0) {
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  Random random(random_.next());
  lock.unlock();
  random.pause(pauses_);
}

RequestPtr MemoryTransport::send(const at::Tensor&, int, int) {
  no_messages();
}

RequestPtr MemoryTransport::recv(const at::Tensor&, int, int) {
  no_messages();
}

RequestPtr MemoryTransport::recv_any(const at::Tensor&, int) {
  no_messages();
}

} // namespace hvd::model
