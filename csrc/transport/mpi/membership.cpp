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
      others_(ranks.size()),
      words_(own_->messages()) {
  std::iota(others_.begin(), others_.end(), 0);
  std::erase(others_, rank);
}

void Membership::leave() {
  const auto others = std::exchange(others_, {});
  for (const int peer : others) {
    words_->send(nullptr, 0, peer, kLeaveTag);
  }
  for (const int peer : others) {
    words_->receive(nullptr, 0, peer, kLeaveTag);
  }
}

bool Membership::has_left(int peer) const {
  return own_->probe(kLeaveTag, peer) >= 0;
}

bool Membership::dissolve() {
  if (!words_->test()) {
    return false;
  }
  own_->free();
  users_->free();
  return true;
}

} // namespace hvd::mpi
