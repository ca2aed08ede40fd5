#include "transport/gloo.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace hvd {

namespace {

constexpr Deadline kNever = Deadline::max();
constexpr const char* kSend = "send to";
constexpr const char* kReceive = "receive from";
constexpr const char* kReceiveAny = "receive from any";

std::chrono::milliseconds remaining(Deadline deadline) {
  // Zero would mean "for ever" to c10d.
  return std::max(
      std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()),
      std::chrono::milliseconds(1));
}

std::string describe(const char* verb, int peer) {
  std::string text = std::string("gloo ") + verb;
  if (peer >= 0) {
    text += " rank " + std::to_string(peer);
  }
  return text;
}

/// Runs `call`, turning whatever Gloo throws into a TransportError that says
/// what was being done, and with whom.
template <typename Call>
auto guarded(const char* verb, int peer, Deadline deadline, Call call) {
  // A profiler would see Gloo's pieces begin in one thread and end in another.
  at::DisableRecordFunctionGuard unrecorded;
  try {
    return call();
  } catch (const std::exception& e) {
    const auto* error = dynamic_cast<const c10::Error*>(&e);
    const std::string text = describe(verb, peer) + ": " +
        (error != nullptr ? error->what_without_backtrace() : e.what());
    if (Clock::now() >= deadline) {
      throw TransportTimeout(text);
    }
    throw TransportError(text);
  }
}

} // namespace

class GlooTransport::GlooRequest final : public Request {
 public:
  struct Part {
    const char* verb;
    int peer; ///< -1: all or any
    c10::intrusive_ptr<c10d::Work> work;
  };

  GlooRequest(GlooTransport& transport, std::vector<Part> parts)
      : transport_(transport), parts_(std::move(parts)) {
    std::lock_guard<std::mutex> lock(transport_.mutex_);
    if (transport_.aborted_) {
      throw TransportError("gloo: aborted");
    }
    transport_.requests_.insert(this);
  }

  GlooRequest(
      GlooTransport& transport,
      const char* verb,
      int peer,
      c10::intrusive_ptr<c10d::Work> work)
      : GlooRequest(transport, {{verb, peer, std::move(work)}}) {}

  ~GlooRequest() override {
    std::lock_guard<std::mutex> lock(transport_.mutex_);
    transport_.requests_.erase(this);
  }

  void wait(Deadline deadline) override {
    for (; waited_ < parts_.size(); ++waited_) {
      const auto& part = parts_[waited_];
      const bool done = guarded(part.verb, part.peer, deadline, [&] {
        return part.work->wait(remaining(deadline));
      });
      if (!done && given_up_) {
        throw RankLeft("gloo: this rank has left");
      }
      if (!done) {
        throw TransportError(describe(part.verb, part.peer) + ": aborted");
      }
    }
  }

  void give_up() noexcept override {
    given_up_ = true;
    abort();
  }

  int source() const override {
    return parts_.front().work->sourceRank();
  }

  /// Ends wait(), whoever is in it.
  void abort() {
    for (const auto& part : parts_) {
      part.work->abort();
    }
  }

 private:
  GlooTransport& transport_;
  const std::vector<Part> parts_;
  std::atomic<bool> given_up_{false};
  size_t waited_ = 0; ///< Gloo's own wait would wait for another message
};

GlooTransport::GlooTransport(c10::intrusive_ptr<c10d::Backend> gloo)
    : Transport(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

// A message longer than its receive makes Gloo end the process, so what does
// not belong together must not have one tag: 6 bits of the sequence and the
// stage keep collectives apart that are under way at once, and 23 bits of a
// hash those that differ between ranks, in call or in size.
int GlooTransport::tag_of(const Lane& lane, const at::Tensor& buffer) {
  constexpr uint64_t kSlots = 64;
  constexpr int kHashBits = 23;
  constexpr uint64_t kHashes = (1 << kHashBits) - 2; // two tags are taken
  const uint64_t hash = (lane.fingerprint ^ buffer.nbytes()) % kHashes;
  const uint64_t slot = (lane.seq % kSlots) << 1 | (lane.stage & 1);
  return kFirstOwnTag | static_cast<int>(slot << kHashBits | hash);
}

template <typename TagOf>
RequestPtr GlooTransport::start(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives,
    TagOf tag_of) {
  std::vector<GlooRequest::Part> parts;
  parts.reserve(sends.size() + receives.size());
  std::vector<at::Tensor> one(1);
  // Receives first: their notices are then on the way before the data is.
  for (const auto& [peer, buffer] : receives | not_empty) {
    one[0] = buffer;
    parts.push_back({kReceive, peer, guarded(kReceive, peer, kNever, [&] {
                       return gloo_->recv(one, peer, tag_of(buffer));
                     })});
  }
  for (const auto& [peer, buffer] : sends | not_empty) {
    one[0] = buffer;
    sent_bytes_ += buffer.nbytes();
    parts.push_back({kSend, peer, guarded(kSend, peer, kNever, [&] {
                       return gloo_->send(one, peer, tag_of(buffer));
                     })});
  }
  return std::make_unique<GlooRequest>(*this, std::move(parts));
}

RequestPtr GlooTransport::exchange(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives,
    const Lane& lane) {
  return start(sends, receives, [&](const at::Tensor& buffer) {
    return tag_of(lane, buffer);
  });
}

RequestPtr GlooTransport::exchange_frames(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives) {
  return start(sends, receives, [](const at::Tensor&) { return kFrameTag; });
}

RequestPtr GlooTransport::send(const at::Tensor& buffer, int peer, int tag) {
  std::vector<at::Tensor> one{buffer};
  sent_bytes_ += buffer.nbytes();
  return std::make_unique<GlooRequest>(
      *this, kSend, peer, guarded(kSend, peer, kNever, [&] {
        return gloo_->send(one, peer, tag);
      }));
}

RequestPtr GlooTransport::recv(const at::Tensor& buffer, int peer, int tag) {
  std::vector<at::Tensor> one{buffer};
  return std::make_unique<GlooRequest>(
      *this, kReceive, peer, guarded(kReceive, peer, kNever, [&] {
        return gloo_->recv(one, peer, tag);
      }));
}

RequestPtr GlooTransport::recv_any(const at::Tensor& buffer, int tag) {
  std::vector<at::Tensor> one{buffer};
  return std::make_unique<GlooRequest>(
      *this, kReceiveAny, -1, guarded(kReceiveAny, -1, kNever, [&] {
        return gloo_->recvAnysource(one, tag);
      }));
}

void GlooTransport::abort() noexcept {
  // ProcessGroupGloo has no abort. A receive that runs into its timeout closes
  // every connection of the context, which fails what is under way on them. It
  // is one from any rank: from one that is dead it would fail, not time out.
  std::call_once(aborting_, [this] {
    try {
      std::vector<at::Tensor> one{at::empty({1}, at::kByte)};
      gloo_->recvAnysource(one, kAbortTag)->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      // Expected: that is how the connections get closed.
    }
    // What is to come from any rank waits for none of them.
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
    for (auto* const request : requests_) {
      request->abort();
    }
  });
}

} // namespace hvd
