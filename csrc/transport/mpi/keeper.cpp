#include "transport/mpi/keeper.h"

#include <chrono>

namespace hvd::mpi {

namespace {

// From one question to the next. Shorter than most waits for what it is for,
// longer than what a rank does between two questions of its own.
constexpr std::chrono::milliseconds kPause{5};

} // namespace

Keeper::Keeper(std::function<void()> ask)
    : ask_(std::move(ask)), thread_([this] { run(); }) {}

Keeper::~Keeper() {
  stop();
}

void Keeper::stop() {
  std::call_once(stopped_, [this] {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  });
}

void Keeper::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kPause, [&] { return closing_; })) {
    if (!noted_.exchange(false)) {
      lock.unlock();
      ask_();
      lock.lock();
    }
  }
}

} // namespace hvd::mpi
