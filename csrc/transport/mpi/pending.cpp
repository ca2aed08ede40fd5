#include "transport/mpi/pending.h"

#include "transport/mpi/inbox.h"

#include <algorithm>
#include <thread>

namespace hvd {

using mpi::Messages;

namespace {

// What MPI can do at once takes no more calls.
constexpr int kOften = 100;

// Between two calls, after that.
constexpr std::chrono::microseconds kPause{100};

} // namespace

void MpiTransport::Pending::keep(const at::Tensor& buffer) {
  buffers_.push_back(buffer);
  if (!buffer.is_cpu()) {
    device_ = buffer.device();
  }
}

void MpiTransport::Pending::send(
    const at::Tensor& buffer,
    int peer,
    int tag,
    int64_t part_bytes) {
  keep(buffer);
  const c10::OptionalDeviceGuard on_device(device_);
  const auto* const from =
      static_cast<const std::byte*>(buffer.const_data_ptr());
  const auto bytes = static_cast<int64_t>(buffer.nbytes());
  int64_t offset = 0;
  do {
    const auto part = std::min(bytes - offset, part_bytes);
    messages_->send(from + offset, part, peer, tag);
    offset += part;
  } while (offset < bytes);
}

void MpiTransport::Pending::receive(
    const at::Tensor& buffer,
    int peer,
    int tag,
    int64_t part_bytes) {
  keep(buffer);
  const c10::OptionalDeviceGuard on_device(device_);
  auto* const to = static_cast<std::byte*>(buffer.mutable_data_ptr());
  const auto bytes = static_cast<int64_t>(buffer.nbytes());
  int64_t offset = 0;
  do {
    const auto part = std::min(bytes - offset, part_bytes);
    messages_->receive(to + offset, part, peer, tag);
    offset += part;
  } while (offset < bytes);
}

void MpiTransport::Pending::receive_by(
    Inbox& inbox,
    const at::Tensor& buffer,
    int peer,
    int tag) {
  inbox_ = &inbox;
  awaited_in_inbox_ = peer;
  inbox.add(weak_from_this(), buffer, peer, tag);
}

bool MpiTransport::Pending::test() {
  if (is_done_) {
    return true;
  }
  if (inbox_ != nullptr) {
    if (inbox_->holds(*this)) {
      return false;
    }
    inbox_ = nullptr;
  }
  const c10::OptionalDeviceGuard on_device(device_);
  if (!messages_->test()) {
    return false;
  }
  is_done_ = true;
  absence_.reset();
  buffers_.clear();
  return true;
}

bool MpiTransport::Pending::test_for(Clock::duration time) {
  const auto until = Clock::now() + time;
  for (int i = 0; i < kOften && !test(); ++i) {
  }
  while (!test() && Clock::now() < until) {
    std::this_thread::sleep_for(kPause);
  }
  return is_done_;
}

bool MpiTransport::Pending::cancel() {
  absence_.reset();
  if (inbox_ != nullptr) {
    std::exchange(inbox_, nullptr)->remove(*this);
  }
  try {
    messages_->cancel_receives();
    return test_for({});
  } catch (const TransportError&) {
    return false;
  }
}

std::string MpiTransport::Pending::describe() const {
  const int peer = awaited_peer();
  const bool receives = inbox_ != nullptr || messages_->awaits_receive();
  const std::string verb = receives ? "mpi receive from " : "mpi send to ";
  return verb + (peer >= 0 ? "rank " + std::to_string(peer) : "any rank");
}

} // namespace hvd
