#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace hvd::mpi {

/// A thread that asks MPI now and then, when nobody else does. Who has received
/// a message may still owe its sender a word, and some libraries (MPICH, where
/// much is under way) keep that word until they are called again: the sender
/// would wait for as long as this rank is busy with something else.
///
/// Threads: every member may be called from any thread.
class Keeper {
 public:
  /// `ask`: called on the thread, and by stop(); must not throw.
  explicit Keeper(std::function<void()> ask);
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  ~Keeper();

  /// Asks for some time more, and then no longer. Idempotent.
  void stop();

  /// Somebody else asks now.
  void note() {
    noted_.store(true, std::memory_order_relaxed);
  }

 private:
  void run();

  const std::function<void()> ask_;
  std::atomic<bool> noted_{false};
  std::mutex mutex_; ///< guards `closing_`
  std::condition_variable changed_;
  bool closing_ = false;
  std::once_flag stopped_;
  std::thread thread_; ///< uses all above
};

} // namespace hvd::mpi
