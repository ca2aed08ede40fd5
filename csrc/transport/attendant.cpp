#include "transport/attendant.h"

namespace hvd {

namespace {

// Most waits are over before it is worth waking anybody.
constexpr std::chrono::milliseconds kPatience{2};

// How long closing may take at most.
constexpr std::chrono::milliseconds kTurn{20};

} // namespace

Attendant::Attendant(std::function<void(Deadline)> attend)
    : attend_(std::move(attend)) {}

Attendant::~Attendant() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

Attendant::Absence::Absence(Attendant& attendant) : attendant_(attendant) {
  std::lock_guard<std::mutex> lock(attendant_.mutex_);
  if (!attendant_.thread_.joinable()) { // the system may refuse one
    attendant_.thread_ = std::thread([&attendant] { attendant.run(); });
  } else if (attendant_.resting_) {
    attendant_.changed_.notify_all();
  }
  ++attendant_.absent_;
}

Attendant::Absence::~Absence() {
  std::lock_guard<std::mutex> lock(attendant_.mutex_);
  --attendant_.absent_;
}

void Attendant::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closing_) {
    resting_ = true;
    changed_.wait(lock, [&] { return closing_ || absent_ > 0; });
    resting_ = false;
    changed_.wait_for(lock, kPatience, [&] { return closing_; });
    while (!closing_ && absent_ > 0) {
      lock.unlock();
      attend_(Clock::now() + kTurn);
      lock.lock();
    }
  }
}

} // namespace hvd
