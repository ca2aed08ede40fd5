#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "engine/engine.h"

#include <memory>
#include <vector>

namespace hvd {

/// Collectives of tensors on a device. The host waits for them to be launched,
/// which needs other ranks only where small ones were fused before; then the
/// current stream does.
///
/// Threads: every member may be called from any thread.
class DeviceWork final : public c10d::Work {
 public:
  using Future = c10::ivalue::Future;

  /// Submits. `results`: of the caller, what the future yields.
  static c10::intrusive_ptr<DeviceWork> submit(
      const std::shared_ptr<Engine>& engine,
      c10d::OpType type,
      std::vector<at::Tensor> results,
      std::vector<Collective> collectives);

  DeviceWork(
      std::shared_ptr<Engine> engine,
      c10d::OpType type,
      const char* title,
      std::vector<at::Tensor> results);

  bool isCompleted() override;
  bool isSuccess() const override;
  /// With a timeout the host waits for the device, and DistBackendError is
  /// thrown when it passes first; also if the group has failed since, for what
  /// the backend was doing then has ended as if it were done.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override;
  /// Completes when all is launched; whoever waits for it has their current
  /// stream wait.
  c10::intrusive_ptr<Future> getFuture() override;
  uint64_t getSequencenumber() const override;

  /// Blocks until all is on its streams. Throws if it was not to be.
  void await_launch(std::chrono::milliseconds timeout);

 private:
  std::function<void()> conclude(std::exception_ptr error);
  void complete(Future& future) const;
  void complete_launched(Future& future) const;
  c10::Device device() const;
  bool is_launched() const;

  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<Operation> operation_;
  const std::vector<at::Tensor> results_;
  c10::intrusive_ptr<Future> future_; ///< guarded by mutex_
  uint64_t seq_ = 0; ///< of the first collective
};

} // namespace hvd
