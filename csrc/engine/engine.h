#pragma once

#include "common/thread_clock.h"
#include "engine/device_track.h"
#include "engine/error_feedback.h"
#include "engine/frame_track.h"
#include "engine/large_track.h"
#include "engine/memory_in_use.h"
#include "engine/statistics.h"
#include "engine/stall_inspector.h"
#include "engine/witness.h"

#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hvd {

/// The collectives of one process group on their way: three queues, and the
/// threads that move them.
///
/// Threads: every member may be called from any thread. `mutex_` guards all
/// state and is never held while a transport, a store or user code runs. The
/// roles are those of Track.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  struct Settings {
    Limits limits;
    bool check = false; ///< compare before every collective
    StallInspector::Limits stall{};
  };

  /// `device`: for tensors that are not on the host; may be null.
  Engine(
      std::unique_ptr<Transport> transport,
      std::unique_ptr<DeviceTransport> device,
      Witness witness,
      std::shared_ptr<Statistics> statistics,
      const Settings& settings);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  /// Queues an operation; unless `caller_waits`, it gets done though nobody
  /// does. Throws, with nothing queued and nothing kept in `on_done`, if the
  /// group is closed, has failed, or belongs to a parent process, or if the
  /// system refuses a thread that it takes.
  void submit(const std::shared_ptr<Operation>& operation, bool caller_waits);

  /// Returns when the operation is done. Works off its queue meanwhile if no
  /// other thread does.
  void drive_until_done(const Operation& operation);

  /// Returns whether the operation was done by `deadline`; leaves the work to
  /// other threads, which an operation has that was submitted for nobody.
  bool wait_until_done(const Operation& operation, Deadline deadline);

  /// Runs `body`, which waits for the transport by itself, on a thread of its
  /// own. Throws c10::Error if the group is closed. `call`: for the message.
  /// `awaited`: a message that it waits for, which is given up where the group
  /// is closed before it is done.
  void run_apart(
      const std::string& call,
      std::function<void()> body,
      std::weak_ptr<Request> awaited = {});

  /// Has a background thread run what completes a future; where there is none
  /// any more, runs it.
  void continue_apart(std::function<void()> continuation);

  /// Waits for everything submitted, then closes and joins all threads.
  /// Idempotent, never throws.
  void shutdown() noexcept;

  /// The process ends: shutdown(), unless a collective is pending that another
  /// thread has called, which is still there. That is a daemon, which Python
  /// has left where it is and does not want back; the others take this rank for
  /// dead, as they do where the system ends it.
  void end() noexcept;

  /// Fails everything pending, and later calls, with `reason`. Idempotent,
  /// never throws.
  void abort(const std::string& reason) noexcept;

  /// Fails everything pending if the group has failed. Never throws.
  void fail_pending() noexcept;

  /// Throws what submit() would throw. `call`: for the message.
  void check_usable(const char* call);

  /// Whether the group has failed or was aborted; in a forked child, not.
  bool failed();

  /// Throws what the group has failed of, if it has.
  void rethrow_failure();

  /// Whether this process was forked off the one that made the engine. Its
  /// threads do not exist here, so it must never be destroyed.
  bool forked() const;

  /// The calling thread has asked for a future that is not complete.
  void future_asked();
  /// It is about to be.
  void future_answered();
  /// While it lives, the calling thread waits for the group.
  WaitingTime::Call waiting();

  /// One of the user's messages is being called.
  void message_called();
  /// While it lives, the calling thread waits for one.
  class MessageWait {
   public:
    MessageWait(Engine& engine, const MessageCall& call);
    MessageWait(const MessageWait&) = delete;
    MessageWait& operator=(const MessageWait&) = delete;
    ~MessageWait();

   private:
    Engine& engine_;
    const WaitingTime::Call waiting_;
    uint64_t number_;
  };
  /// It is done; `name`: as people read it.
  void message_done(const std::string& name, int64_t bytes, Deadline submitted);
  /// It has failed of `error`, and with it the group, unless that goes on
  /// without the peer: fail_pending() then. Returns what to tell of it.
  std::string message_failed(
      const std::string& name,
      const std::exception& error);

  /// Whether the transport moves its tensors straight from and to the memory of
  /// such a device. `collective`: its verb, dtype and count are set.
  bool takes_in_place(const Collective& collective, c10::DeviceType device)
      const;

  /// Collectives submitted so far; in a forked child, none.
  uint64_t submitted();

  Transport& transport() const {
    return *transport_;
  }
  /// Null if there is none.
  DeviceTransport* device() {
    return device_.get();
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Continuation = std::function<void()>;

  /// What is left to do about finished items once no lock and no role is held.
  /// Dropping an item can free a Python tensor, which takes the GIL.
  struct Aftermath {
    std::vector<Continuation> continuations;
    c10::SmallVector<Operation::OnDone, 1> called; ///< they hold the works
    c10::SmallVector<std::shared_ptr<Operation>, 1> operations;
    c10::SmallVector<Batch, 1> batches;
  };

  /// A collective that is not settled, in order of the sequence.
  struct Pending {
    std::shared_ptr<Operation> operation;
    const Collective* collective;
    bool finished;
    std::exception_ptr error;
    Times times;
  };

  /// See run_apart().
  struct ThreadApart {
    std::thread thread;
    std::weak_ptr<Request> awaited;
  };

  void enqueue(
      Lock& lock,
      const std::shared_ptr<Operation>& operation,
      bool caller_waits);
  Track& track_of(const Collective& collective);
  uint64_t enlist(const Collective& collective);
  /// Whether nobody can finish anything.
  bool is_idle(const Track& track) const;
  bool is_finished(const Collective& collective) const;
  /// Whether something could be started and nobody has done so yet.
  bool is_held(const Track& track) const;

  // The roles. All are called with `lock` held and return with it held.
  void admit();
  /// Starts what may go. What waits for a device is left to others, unless it
  /// is of `own`, which the thread has nothing else to do than wait for.
  void start_ready(
      Lock& lock,
      Track& track,
      Aftermath& aftermath,
      const Operation* own = nullptr);
  void start_all(Lock& lock, const Operation* own = nullptr);
  void hold(Lock& lock, Track& track);
  void finish_front(Lock& lock, Track& track, Aftermath& aftermath);
  void work_off(Lock& lock, Track& track);
  /// Called by who may have started something, and will not finish it now.
  void wake_sleepers(const Track* but = nullptr);
  /// The items of a batch are done, or have failed.
  void settle(const Batch& batch, const std::exception_ptr& error);
  void record(const Batch& batch, bool framed);
  void retire(Lock& lock, Aftermath& aftermath);
  void conclude(Lock& lock, Aftermath& aftermath);
  /// Whether a thread that has nothing to do should run some.
  bool may_continue() const;
  /// Whoever does not run the next continuation sees to it that another thread
  /// does, or will if who runs the one before does not come back. Returns false
  /// if the system refuses a thread; as a rule they wait for nothing.
  bool ensure_continuing();
  /// For how long the one that runs may before it seems to wait for the next.
  Clock::duration patience() const;
  void run_continuations(Lock& lock);
  /// Called by a background thread of the track.
  void continue_beside(Lock& lock, Track& track);

  // The parts of a role that run unlocked.
  void start(Track& track, Batch& batch);
  void advance(Track& track, Batch& batch);
  size_t finish(Track& track, Batch& batch);
  std::string explain(const Batch& batch, const std::string& error);
  /// How this rank's place differs from those of others, or else the error.
  std::string compare(const Witness::Place& place, const std::string& error);

  void abort_transports() noexcept;
  /// The group fails of what `why` tells, which is called unlocked, once
  /// the transports are aborted; unless it fails already.
  void give_up(Lock& lock, c10::function_ref<std::string()> why);
  void fail(const std::string& message);
  void fail_pending(Lock& lock, Aftermath& aftermath);
  [[noreturn]] void refuse(const std::string& call) const;

  std::thread make_thread(std::function<void(Engine&)> body);
  void ensure_background_thread(Track& track);
  void add_background_thread(Track& track);
  void background(Track& track);
  /// Until there is work for its background thread. `nap`: between two looks.
  void rest(Lock& lock, Track& track, Clock::duration& nap);
  void ensure_watchdog();
  void watch();
  /// What is due of something that is waited for. `describe`: where.
  void tell_stall(
      const StallInspector::Stall& stall,
      c10::function_ref<std::string()> describe);
  // With the lock held.
  Witness::Place place() const;
  Witness::Place place_at(const Collective* waited_for) const;
  std::string describe_wait(const std::string& what, Clock::duration age) const;
  std::string describe_stall(const Witness::Place& place, Clock::duration age);
  /// Of the message that is waited for there.
  std::string describe_message_stall(
      const Witness::Place& place,
      Clock::duration age);
  /// Whether another rank has said that it called something else in this place,
  /// of which nobody would hear otherwise.
  bool differs_elsewhere(const Witness::Place& place);

  const std::unique_ptr<Transport> transport_;
  const std::unique_ptr<DeviceTransport> device_;
  const std::shared_ptr<Statistics> statistics_;
  const Settings settings_;
  const int fork_depth_;
  /// Whether this thread is about to run the continuations of an engine by
  /// itself, as its background threads are; and whether it is in one.
  static thread_local const Engine* continues_;
  static thread_local bool in_continuation_;

  std::mutex witness_mutex_; ///< taken without `mutex_`
  Witness witness_;

  std::mutex mutex_;
  std::condition_variable progress_; ///< for callers
  std::condition_variable stopped_; ///< for the watchdog
  std::deque<Pending> pending_; ///< settled in order, whichever is first
  uint64_t retired_ = 0; ///< collectives settled
  bool retiring_ = false;
  /// What users have hung on futures: run by background threads only, for it
  /// must not meet what a caller has set for its thread. One may wait for what
  /// the next does; so that does not wait long for it.
  std::deque<Continuation> continuations_;
  bool continuing_ = false; ///< a thread runs one after the other
  Deadline continuing_since_; ///< the one that it is at
  size_t in_continuations_ = 0; ///< threads
  uint64_t turn_ = 0; ///< of that thread; it ends when another one takes over
  std::deque<Item> waiting_; ///< for memory that is in use, and behind such
  MemoryInUse memory_;
  ErrorFeedback error_feedback_;
  Agreement agreement_;
  FrameTrack frames_;
  LargeTrack large_;
  DeviceTrack on_device_;
  const std::vector<Track*> tracks_;
  uint64_t submitted_ = 0;
  Signature last_called_;
  Witness::Splits last_splits_;
  Deadline last_submitted_; ///< for which nobody waits yet
  ThreadClock caller_; ///< of that
  size_t submitting_ = 0; ///< callers that are starting large collectives
  uint64_t batches_ = 0;
  std::vector<Witness::Message> messages_; ///< waited for, in this order
  uint64_t messages_waited_ = 0; ///< so far
  bool watched_ = false; ///< there is a watchdog
  bool closed_ = false;
  bool stop_ = false;
  bool failing_ = false; ///< somebody is finding out why
  std::exception_ptr error_; ///< what the group failed of
  std::string failure_; ///< its text
  std::vector<std::thread> threads_;
  std::vector<ThreadApart> threads_apart_;
  std::vector<std::thread> threads_over_; ///< apart before, now to be joined
};

} // namespace hvd
