#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comms_record.h"
#include "device_batch.h"
#include "device_work.h"
#include "engine/engine.h"
#include "options.h"

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace hvd {

/// The part of a process group that is for tensors on a device: it passes the
/// calls of c10d on to the stock backend, in the order of the group's sequence,
/// but for all_reduces that fuse or are compressed. What the backend's checks
/// refuse is an error of that call's work.
///
/// Threads: every member may be called from any thread.
class DeviceGroup final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// `engine`: with a device.
  DeviceGroup(
      std::shared_ptr<Engine> engine,
      c10::intrusive_ptr<hvd::Options> options);

  const std::string getBackendName() const override {
    return "hvd";
  }
  bool takes(const at::Tensor& tensor) const {
    return tensor.device().type() == device_.type();
  }
  bool takes(const Tensors& tensors) const {
    return !tensors.empty() && takes(tensors[0]);
  }

  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr allreduce_coalesced(Tensors&, const c10d::AllreduceCoalescedOptions&)
      override;
  WorkPtr reduce(Tensors&, const c10d::ReduceOptions&) override;
  WorkPtr allgather(TensorLists&, Tensors&, const c10d::AllgatherOptions&)
      override;
  WorkPtr _allgather_base(
      at::Tensor&,
      at::Tensor&,
      const c10d::AllgatherOptions&) override;
  WorkPtr allgather_coalesced(
      TensorLists&,
      Tensors&,
      const c10d::AllgatherOptions&) override;
  WorkPtr allgather_into_tensor_coalesced(
      Tensors&,
      Tensors&,
      const c10d::AllgatherOptions&) override;
  WorkPtr gather(TensorLists&, Tensors&, const c10d::GatherOptions&) override;
  /// See ProcessGroupHVD.
  WorkPtr gather_into_tensor(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::GatherOptions&);
  WorkPtr scatter(Tensors&, TensorLists&, const c10d::ScatterOptions&) override;
  WorkPtr reduce_scatter(
      Tensors&,
      TensorLists&,
      const c10d::ReduceScatterOptions&) override;
  WorkPtr _reduce_scatter_base(
      at::Tensor&,
      at::Tensor&,
      const c10d::ReduceScatterOptions&) override;
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors&,
      Tensors&,
      const c10d::ReduceScatterOptions&) override;
  WorkPtr alltoall_base(
      at::Tensor&,
      at::Tensor&,
      std::vector<int64_t>&,
      std::vector<int64_t>&,
      const c10d::AllToAllOptions&) override;
  WorkPtr alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) override;
  /// Messages do not wait behind the queue.
  WorkPtr send(Tensors&, int peer, int tag) override;
  WorkPtr recv(Tensors&, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors&, int tag) override;

  /// Blocks until the device has done what this thread has put on its current
  /// stream: the device that is named, or else those of the group's tensors so
  /// far, or else this thread's.
  void drain_stream(std::optional<c10::Device> named) const;

  /// What is called from here on is put off, to be one call of the backend. It
  /// has no place in the sequence, for messages are not every rank's, and comes
  /// after all that was submitted before.
  void startCoalescing() override;
  /// Null if nothing was put off.
  WorkPtr endCoalescing() override;
  bool is_coalescing() const;

 private:
  /// A call on its way to the backend.
  struct Call {
    c10d::OpType type;
    Signature signature;
    c10::Device device;
    Tensors results;
    std::chrono::milliseconds timeout;
  };

  Call call(
      c10d::OpType type,
      Verb verb,
      Tensors results,
      std::chrono::milliseconds timeout) const;
  /// `moved`: all tensors that the launch reads or writes.
  WorkPtr put_off(Call call, DeviceCall::Launch launch, const Tensors& moved);
  /// `arguments`: of the backend's verb, before its options.
  template <typename BackendVerb, typename VerbOptions, typename... Arguments>
  WorkPtr pass_on(
      Call call,
      BackendVerb verb,
      VerbOptions opts,
      Arguments... arguments);
  WorkPtr message(
      const char* verb,
      DeviceCall::Launch launch,
      const Tensors& moved);
  /// Takes `launch` and returns its work if calls are being coalesced, else
  /// null.
  WorkPtr coalesce(DeviceCall::Launch& launch, const Tensors& moved);
  std::optional<Collective> own_allreduce(
      const at::Tensor& tensor,
      const c10d::ReduceOp& op,
      std::chrono::milliseconds timeout) const;
  WorkPtr submit(Call call, std::vector<Collective> collectives);
  std::chrono::milliseconds timeout_or_default(
      std::chrono::milliseconds timeout) const;

  const std::shared_ptr<Engine> engine_;
  const c10::intrusive_ptr<hvd::Options> options_;
  const CompressionSettings compression_;
  DeviceTransport& device_;
  mutable std::mutex mutex_;
  /// Between start and end.
  std::optional<DeviceBatch> coalesced_;
  std::optional<c10::weak_intrusive_ptr<DeviceWork>> last_; ///< submitted
};

} // namespace hvd
