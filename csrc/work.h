#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "common/stream_mark.h"
#include "engine/engine.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace hvd {

/// What the profiler shows of a call, if anybody looks.
std::optional<std::vector<at::Tensor>> if_profiled(
    const std::vector<at::Tensor>& tensors);

/// Returns when the operation is done. Throws DistBackendError when `timeout`
/// passes first; the operation goes on then. Zero or negative: as long as its
/// own timeout allows. `what`: of the operation, for the error.
void wait_for(
    Engine& engine,
    const Operation& operation,
    std::chrono::milliseconds timeout,
    const std::string& what = "");

/// Base of both kinds of work: results and the future that yields them.
///
/// Threads: every member may be called from any thread.
class WorkHVD : public c10d::Work {
 public:
  std::vector<at::Tensor> result() override;

  /// In a forked child: see check_process().
  bool isCompleted() override;

  /// Completes with the list of result tensors, once they are there.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 protected:
  /// `inputs`: shown by the profiler, under the name "hvd:<verb>".
  WorkHVD(
      std::shared_ptr<Engine> engine,
      c10d::OpType type,
      const char* title,
      const std::vector<at::Tensor>& inputs,
      std::vector<at::Tensor> results);

  /// Marks the work as over. What it returns completes the future, which may
  /// run user code; empty if nobody has asked for one.
  std::function<void()> conclude(std::exception_ptr error);

  /// Returns when the future, if any, is complete too; throws the work's error.
  void wait_for_future_and_rethrow();

  /// What is under way, for errors.
  virtual std::string describe() const = 0;

  /// Throws in a child that was forked off while the work was under way: it
  /// would wait for ever there, or take messages from the parent.
  void check_process();

  const std::shared_ptr<Engine> engine_;

 private:
  const std::vector<at::Tensor> results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_; ///< guarded by mutex_
  bool future_settled_ = false; ///< somebody completes it; guarded by mutex_
};

/// One or more collectives in the engine's queue.
class CollectiveWork final : public WorkHVD {
 public:
  /// Submits. With `caller_waits`, returns when all is done.
  static c10::intrusive_ptr<CollectiveWork> submit(
      const std::shared_ptr<Engine>& engine,
      c10d::OpType type,
      const std::vector<at::Tensor>& inputs,
      std::vector<at::Tensor> results,
      std::vector<Collective> collectives,
      bool caller_waits);

  CollectiveWork(
      std::shared_ptr<Engine> engine,
      c10d::OpType type,
      const char* title,
      const std::vector<at::Tensor>& inputs,
      std::vector<at::Tensor> results);

  /// See wait_for().
  bool wait(std::chrono::milliseconds timeout) override;
  uint64_t getSequencenumber() const override;

 private:
  std::string describe() const override;

  const std::shared_ptr<Operation> operation_;
  uint64_t seq_ = 0; ///< of the first collective
};

/// Several works as one.
class JointWork final : public c10d::Work {
 public:
  explicit JointWork(std::vector<c10::intrusive_ptr<c10d::Work>> parts)
      : parts_(std::move(parts)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
};

/// A send or receive. It does not pass through the queue: wait() waits for the
/// transport itself; a thread does so when somebody polls or asks for a future.
class MessageWork final : public WorkHVD {
 public:
  using Start = std::function<RequestPtr(Transport&)>;

  /// `peer`: -1 for any. `tensor`: the caller's, for which `buffer` may stand.
  MessageWork(
      std::shared_ptr<Engine> engine,
      c10d::OpType type,
      const char* title,
      int peer,
      at::Tensor buffer,
      at::Tensor tensor,
      std::chrono::milliseconds timeout,
      const Start& start);
  /// A send goes on without its work.
  ~MessageWork() override;

  bool wait(std::chrono::milliseconds timeout) override;
  /// Asked again, it has a thread wait for the message: somebody is polling. A
  /// first look costs nothing, because torch's flight recorder takes one.
  bool isCompleted() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  int sourceRank() const override;

 private:
  std::string describe() const override;
  /// Waits for the transport, and fails the group if that takes too long; or
  /// for who does so.
  void wait_until(Deadline deadline);
  /// Has a thread do so.
  void wait_apart();
  /// Whether that is done by then. If not, it goes on.
  bool wait_for_thread(Deadline deadline);

  const MessageCall call_;
  const at::Tensor buffer_;
  const at::Tensor tensor_;
  /// Of a tensor on a device for which the buffer stands: when the caller has
  /// done with it what came before.
  std::optional<StreamMark> on_device_;
  const std::chrono::milliseconds timeout_;
  const Deadline submitted_ = Clock::now();
  std::mutex request_mutex_; ///< held while waiting; before mutex_
  std::shared_ptr<Request> request_;
  std::once_flag waited_apart_;
  std::atomic<bool> looked_at_{false};
};

} // namespace hvd
