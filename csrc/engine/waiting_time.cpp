#include "engine/waiting_time.h"

#include <algorithm>

namespace hvd {

void WaitingTime::begin_call() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (calls_ == 0) {
    count();
  }
  ++calls_;
}

void WaitingTime::end_call() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (calls_ == 1) {
    count();
  }
  --calls_;
}

void WaitingTime::ask(bool by_engine) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto asker = by_engine ? asker_ : std::optional(ThreadClock());
  if (futures_ == 0 || asker != asker_) {
    count();
    asker_ = asker;
    ++futures_;
    counted_ = now();
  } else {
    ++futures_;
  }
}

void WaitingTime::answer() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (futures_ == 1) {
    count();
  }
  --futures_;
}

Clock::duration WaitingTime::total() {
  std::lock_guard<std::mutex> lock(mutex_);
  count();
  return total_;
}

void WaitingTime::count() {
  const auto now = this->now();
  const auto passed = now.time - counted_.time;
  if (calls_ > 0) {
    total_ += passed;
  } else if (now.awake && counted_.awake) {
    const Clock::duration asleep = passed - (*now.awake - *counted_.awake);
    total_ += std::clamp(asleep, Clock::duration(0), passed);
  }
  counted_ = now;
}

WaitingTime::Moment WaitingTime::now() const {
  Moment now;
  if (futures_ > 0 && asker_) {
    now.awake = asker_->awake();
  }
  return now;
}

} // namespace hvd
