#include "transport/mpi/keeper.h"

#include "transport/transport.h"

namespace hvd::mpi {

namespace {

// From one question to the next. Shorter than most waits for what it is for,
// longer than what a rank does between two questions of its own.
constexpr std::chrono::milliseconds kPause{5};

// Each time; a look sees to a message or two.
constexpr int kLooks = 10;

// At the end.
constexpr std::chrono::milliseconds kFarewell{5};
constexpr std::chrono::microseconds kFarewellPause{100};

} // namespace

Keeper::Keeper(std::function<void()> ask)
    : ask_(std::move(ask)), thread_([this] { run(); }) {}

Keeper::~Keeper() {
  stop();
}

void Keeper::stop() {
  std::call_once(stopped_, [this] {
    const auto until = Clock::now() + kFarewell;
    for (; Clock::now() < until; std::this_thread::sleep_for(kFarewellPause)) {
      ask_();
    }
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
      for (int looks = kLooks; looks > 0; --looks) {
        ask_();
      }
      lock.lock();
    }
  }
}

} // namespace hvd::mpi
