#include "transport/mpi/inbox.h"

#include "transport/mpi/pending.h"

#include <algorithm>
#include <set>

namespace hvd {

using mpi::Messages;

void MpiTransport::Inbox::add(
    std::weak_ptr<Pending> pending,
    const at::Tensor& buffer,
    int peer,
    int tag) {
  std::lock_guard<std::mutex> lock(mutex_);
  receives_.push_back({std::move(pending), buffer, peer, tag});
  post_ready();
}

void MpiTransport::Inbox::post() {
  std::lock_guard<std::mutex> lock(mutex_);
  post_ready();
}

bool MpiTransport::Inbox::holds(const Pending& pending) {
  std::lock_guard<std::mutex> lock(mutex_);
  post_ready();
  return std::ranges::any_of(receives_, [&](const Receive& receive) {
    return receive.pending.lock().get() == &pending;
  });
}

void MpiTransport::Inbox::remove(const Pending& pending) {
  std::lock_guard<std::mutex> lock(mutex_);
  receives_.remove_if([&](const Receive& receive) {
    return receive.pending.lock().get() == &pending;
  });
}

void MpiTransport::Inbox::post_ready() {
  std::set<int> held; // tags of receives from any rank without a message
  receives_.remove_if([&](const Receive& receive) {
    const auto& [waiting, buffer, peer, tag] = receive;
    const auto pending = waiting.lock();
    if (!pending || held.contains(tag)) {
      return !pending;
    }
    int source = peer;
    if (peer == Messages::kAnyPeer) {
      source = users_.probe(tag);
    }
    if (source < 0) {
      held.insert(tag);
      return false;
    }
    pending->receive(buffer, source, tag, Messages::kMostBytes);
    return true;
  });
}

} // namespace hvd
