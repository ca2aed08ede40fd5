#pragma once

#include "transport/transport.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace hvd {

/// A thread that does what waiting threads do for a transport, while they wait
/// for something else.
///
/// Threads: every member may be called from any thread.
class Attendant {
 public:
  /// `attend`: blocks until the deadline at most; called on the thread.
  explicit Attendant(std::function<void(Deadline)> attend);
  Attendant(const Attendant&) = delete;
  Attendant& operator=(const Attendant&) = delete;
  ~Attendant();

  /// While a caller waits elsewhere.
  class Absence {
   public:
    explicit Absence(Attendant& attendant);
    Absence(const Absence&) = delete;
    Absence& operator=(const Absence&) = delete;
    ~Absence();

   private:
    Attendant& attendant_;
  };

  /// Whether some do.
  bool is_needed() {
    std::lock_guard<std::mutex> lock(mutex_);
    return absent_ > 0;
  }

 private:
  void run();

  const std::function<void(Deadline)> attend_;
  std::mutex mutex_; ///< guards all below
  std::condition_variable changed_;
  int absent_ = 0;
  bool resting_ = false;
  bool closing_ = false;
  std::thread thread_; ///< made when first needed
};

} // namespace hvd
