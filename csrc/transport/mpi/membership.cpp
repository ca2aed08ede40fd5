#include "transport/mpi/membership.h"

#include <numeric>
#include <utility>

namespace hvd::mpi {

Membership::Membership(
    Communicator& world,
    const std::vector<int>& ranks,
    int rank,
    int tag)
    : own_(world.create(ranks, tag)),
      users_(world.create(ranks, tag + 1)),
      words_(own_->messages()),
      present_(ranks.size()) {
  std::iota(present_.begin(), present_.end(), 0);
  std::erase(present_, rank);
  untold_ = present_;
}

void Membership::leave() {
  for (const int peer : std::exchange(untold_, {})) {
    words_->send(nullptr, 0, peer, kLeaveTag);
  }
}

bool Membership::has_left(int peer) const {
  return own_->probe(kLeaveTag, peer) >= 0;
}

bool Membership::dissolve() {
  std::erase_if(present_, [this](int peer) {
    const bool left = has_left(peer);
    if (left) {
      words_->receive(nullptr, 0, peer, kLeaveTag);
    }
    return left;
  });
  if (!present_.empty() || !words_->test()) {
    return false;
  }
  own_->free();
  users_->free();
  return true;
}

} // namespace hvd::mpi
