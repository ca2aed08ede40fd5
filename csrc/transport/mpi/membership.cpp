#include "transport/mpi/membership.h"

#include <algorithm>
#include <future>
#include <numeric>
#include <thread>
#include <utility>

namespace hvd::mpi {

namespace {

constexpr std::chrono::milliseconds kLook{20};

} // namespace

Membership::Membership(
    Communicator& world,
    const std::vector<int>& ranks,
    int rank,
    int tag)
    : ranks_(ranks),
      own_(world.create(ranks, tag)),
      users_(world.create(ranks, tag + 1)),
      others_(ranks.size()),
      words_(own_->messages()) {
  std::iota(others_.begin(), others_.end(), 0);
  std::erase(others_, rank);
}

std::unique_ptr<Membership> Membership::make(
    Communicator& world,
    const std::vector<int>& ranks,
    int rank,
    int tag,
    const std::function<void()>& check) {
  std::packaged_task<std::unique_ptr<Membership>()> task(
      [&world, ranks, rank, tag] {
        return std::make_unique<Membership>(world, ranks, rank, tag);
      });
  auto made = task.get_future();
  std::thread(std::move(task)).detach();
  while (made.wait_for(kLook) != std::future_status::ready) {
    check();
  }
  return made.get();
}

void Membership::leave(const std::function<bool(int)>& may_have_ended) {
  const auto others = std::exchange(others_, {});
  for (const int peer : others) {
    if (may_have_ended(peer)) {
      owed_.push_back(peer);
    } else {
      words_->send(nullptr, 0, peer, kLeaveTag);
    }
  }
  for (const int peer : others) {
    words_->receive(nullptr, 0, peer, kLeaveTag);
  }
}

bool Membership::has_left(int peer) const {
  return own_->probe(kLeaveTag, peer) >= 0;
}

bool Membership::has_any_left() const {
  return own_->probe(kLeaveTag) >= 0;
}

void Membership::tell(const std::vector<int>& present) {
  std::erase_if(owed_, [&](int peer) {
    const bool is_there = std::ranges::count(present, ranks_[peer]) > 0;
    if (is_there) {
      words_->send(nullptr, 0, peer, kLeaveTag);
    }
    return is_there;
  });
}

bool Membership::dissolve() {
  if (!owed_.empty() || !words_->test()) {
    return false;
  }
  own_->free();
  users_->free();
  return true;
}

} // namespace hvd::mpi
