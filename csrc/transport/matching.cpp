#include "transport/matching.h"

#include <cstring>
#include <iterator>
#include <utility>

namespace hvd {

namespace {

// What a receiver keeps of a peer at most, and what it keeps a message by.
constexpr int64_t kLead = 4 << 20;
constexpr int64_t kLabel = 512;

std::vector<Transfer> without_empty(const std::vector<Transfer>& all) {
  std::vector<Transfer> some;
  std::ranges::copy(all | not_empty, std::back_inserter(some));
  return some;
}

} // namespace

bool Lead::is_too_long(int64_t bytes) {
  bytes_ += bytes + kLabel;
  // An empty message cannot wait in an arena.
  const bool is = bytes_ > kLead && bytes > 0;
  bytes_ = is ? 0 : bytes_;
  return is;
}

void MatchedReceive::assign(int source, int64_t bytes) {
  this->source = source;
  total = bytes;
  const auto room = static_cast<int64_t>(buffer.nbytes());
  if (bytes > room) {
    error = "a message of " + std::to_string(bytes) +
        " bytes for a buffer of " + std::to_string(room);
  }
}

void MatchedReceive::add(int64_t bytes) {
  read += bytes;
  if (read == total) {
    finish();
  }
}

void MatchedReceive::leave_to(std::shared_ptr<MatchedReceive> heir) {
  heir_ = std::move(heir);
  if (done) {
    finish();
  }
}

void MatchedReceive::finish() {
  done = true;
  if (heir_) {
    heir_->inherit(*this);
    heir_ = nullptr;
  }
}

void MatchedReceive::inherit(const MatchedReceive& kept) {
  if (error.empty()) {
    error = kept.error;
  }
  if (error.empty() && kept.total > 0) {
    std::memcpy(
        next(), kept.buffer.const_data_ptr(), static_cast<size_t>(kept.total));
  }
  add(kept.total);
}

RequestPtr MatchingTransport::exchange(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives,
    const Lane& lane) {
  return start(
      without_empty(sends),
      without_empty(receives),
      [&](const at::Tensor& buffer) { return Key::of(lane, buffer); });
}

RequestPtr MatchingTransport::exchange_frames(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives) {
  return start(
      sends, receives, [](const at::Tensor&) { return Key::of_frame(); });
}

RequestPtr MatchingTransport::send(
    const at::Tensor& buffer,
    int peer,
    int tag) {
  return start({{peer, buffer}}, {}, [&](const at::Tensor&) {
    return Key::of_user(tag);
  });
}

RequestPtr MatchingTransport::recv(
    const at::Tensor& buffer,
    int peer,
    int tag) {
  return start({}, {{peer, buffer}}, [&](const at::Tensor&) {
    return Key::of_user(tag);
  });
}

RequestPtr MatchingTransport::recv_any(const at::Tensor& buffer, int tag) {
  return recv(buffer, MatchedReceive::kAny, tag);
}

void MatchingTransport::check_open() const {
  if (aborted_) {
    fail("aborted" + departed());
  }
  // Who timed out comes before those who gave up because of that.
  for (const auto& [farewell, what] :
       {std::pair(Farewell::TimedOut, " timed out and gave up"),
        std::pair(Farewell::GaveUp, " gave up")}) {
    for (int peer = 0; peer < size(); ++peer) {
      if (farewell_of(peer) == farewell) {
        fail(name_of(peer) + what + departed());
      }
    }
  }
}

std::string MatchingTransport::departed() const {
  std::vector<int> gone;
  for (int peer = 0; peer < size(); ++peer) {
    if (has_left(peer)) {
      gone.push_back(peer);
    }
  }
  return gone.empty() ? "" : "; " + have_left(gone);
}

std::string MatchingTransport::have_left(const std::vector<int>& peers) const {
  std::vector<int> numbers;
  for (const int peer : peers) {
    numbers.push_back(number_of(peer));
  }
  return name_ranks(numbers) +
      (numbers.size() == 1 ? " has left or died" : " have left or died");
}

} // namespace hvd
