#pragma once

#include "collectives/frames.h"
#include "collectives/running.h"
#include "engine/agreement.h"
#include "engine/operation.h"
#include "engine/witness.h"
#include "transport/transport.h"

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace hvd {

/// The ordered queue of one process group and the threads that drive it.
///
/// Threads: every member may be called from any thread. `mutex_` guards all
/// state and is never held while a transport, a store or user code runs. There
/// are two roles, each held by one thread at a time: *starting* collectives,
/// which does not block and falls to whoever finds room for the next one; and
/// *finishing* them in order, which blocks and falls to a caller that waits, or
/// to a background thread when nobody does.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(std::unique_ptr<Transport> transport, Witness witness);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() = default;

  /// Queues an operation. Throws, with nothing queued, if the group is closed,
  /// has failed, or belongs to a parent process.
  void submit(const std::shared_ptr<Operation>& operation);

  /// Returns when the operation is done. Works off the queue meanwhile if no
  /// other thread does.
  void drive_until_done(const Operation& operation);

  /// Returns whether the operation was done by `deadline`; leaves the work to
  /// other threads.
  bool wait_until_done(const Operation& operation, Deadline deadline);

  /// Sees to it that the queue moves though nobody waits.
  void run_in_background();

  /// Runs `body`, which waits for the transport by itself, on a thread of its
  /// own.
  void run_apart(std::function<void()> body);

  /// Waits for everything submitted, then closes and joins all threads.
  /// Idempotent, never throws.
  void shutdown() noexcept;

  /// Fails everything pending, and later calls, with `reason`. Idempotent,
  /// never throws.
  void abort(const std::string& reason) noexcept;

  /// Throws what submit() would throw. `call`: for the message.
  void check_usable(const char* call);

  /// Whether the group has failed or was aborted.
  bool failed();

  /// Whether this process was forked off the one that made the engine. Its
  /// threads do not exist here, so it must never be destroyed.
  bool forked() const;

  /// Collectives submitted so far.
  uint64_t submitted();

  Transport& transport() {
    return *transport_;
  }

 private:
  struct Item {
    std::shared_ptr<Operation> operation;
    Collective* collective;
    RunningPtr running; ///< none for a small one, which is in `frames_`
    Deadline deadline;
  };
  using Lock = std::unique_lock<std::mutex>;

  /// What is left to do about finished items once no lock and no role is held.
  /// Dropping an item can free a Python tensor, which takes the GIL.
  struct Aftermath {
    std::vector<std::function<void()>> continuations;
    std::vector<Item> items;
  };

  bool is_small(const Collective& collective) const;
  bool has_room(const Collective& collective) const;

  // The roles. All are called with `lock` held and return with it held.
  void start_ready(Lock& lock, Aftermath& aftermath);
  void finish_front(Lock& lock, Aftermath& aftermath);
  void fail_pending(Lock& lock, Aftermath& aftermath);
  void work_off(Lock& lock);
  void settle(
      Lock& lock,
      std::vector<Item> items,
      const std::exception_ptr& error,
      Aftermath& aftermath);
  void conclude(Lock& lock, Aftermath& aftermath);

  // The parts of a role that run unlocked.
  void start(Item& item, uint64_t tail);
  void finish(Item& item);
  std::string explain(const Item& item, const std::string& error);

  void fail(const std::string& message);
  [[noreturn]] void refuse(const std::string& call) const;

  template <typename Body>
  std::thread make_thread(Body body);
  void ensure_background_thread();
  void background();
  void watch();
  /// Whether another rank has said that it called something else in this place.
  bool differs_elsewhere(const Witness::Place& place);

  const std::unique_ptr<Transport> transport_;
  const int fork_depth_;

  std::mutex witness_mutex_; ///< taken without `mutex_`
  Witness witness_;

  // Used by the roles alone, one collective at a time.
  std::optional<FrameLane> frames_; ///< made by the first small collective
  Agreement agreement_;

  std::mutex mutex_;
  std::condition_variable work_ready_; ///< for background threads
  std::condition_variable progress_; ///< for callers
  std::condition_variable stopped_; ///< for the watchdog
  std::deque<Item> queue_; ///< submitted, not started
  std::deque<Item> started_; ///< finished in this order
  size_t small_started_ = 0;
  size_t large_started_ = 0;
  uint64_t submitted_ = 0;
  bool starting_ = false;
  bool finishing_ = false;
  bool closed_ = false;
  bool stop_ = false;
  std::exception_ptr error_; ///< what the group failed of
  std::string failure_; ///< its text
  std::vector<std::thread> threads_;
  std::vector<std::thread> threads_apart_;
  std::vector<std::thread> threads_over_; ///< apart before, now to be joined
  size_t free_threads_ = 0; ///< background threads outside user code
};

} // namespace hvd
