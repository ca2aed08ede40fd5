#include "transport/mpi/keeper.h"

#include <algorithm>
#include <chrono>

namespace hvd::mpi {

namespace {

// Between two questions: soon after somebody else has asked, then more and more
// seldom, for what is left is mostly over with the first.
constexpr std::chrono::microseconds kShortest{1000};
constexpr std::chrono::microseconds kLongest{10'000};

} // namespace

Keeper::Keeper(std::function<void()> ask)
    : ask_(std::move(ask)), thread_([this] { run(); }) {}

Keeper::~Keeper() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Keeper::run() {
  auto pause = kLongest;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, pause, [&] { return closing_; })) {
    pause = noted_.exchange(false) ? kShortest
                                   : std::min(pause + pause / 4, kLongest);
    lock.unlock();
    ask_();
    lock.lock();
  }
}

} // namespace hvd::mpi
