#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "arguments.h"
#include "comms_record.h"
#include "engine/engine.h"
#include "options.h"

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace hvd {

/// The part of a process group that is for tensors on the host, and for those
/// of devices that have no backend of their own: it checks and translates the
/// calls of c10d; the engine does the rest.
///
/// Threads: every member may be called from any thread.
class HostGroup final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  HostGroup(
      std::shared_ptr<Engine> engine,
      c10::intrusive_ptr<hvd::Options> options);

  const std::string getBackendName() const override {
    return "hvd";
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
  WorkPtr send(Tensors&, int peer, int tag) override;
  WorkPtr recv(Tensors&, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors&, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions&) override;

  /// Calls are made at once all the same.
  void startCoalescing() override;
  /// Of what was called since; null if nothing was.
  WorkPtr endCoalescing() override;

 private:
  Arguments arguments(std::chrono::milliseconds timeout) const;
  WorkPtr submit(
      c10d::OpType type,
      const Tensors& inputs,
      Tensors results,
      std::vector<Collective> collectives,
      bool async);
  /// Of a message.
  std::unique_ptr<CommsRecord> record(
      const char* verb,
      int peer,
      const Tensors& tensors);
  WorkPtr noted(WorkPtr work);
  void check_message(const char* verb, const Tensors& tensors, int tag);
  void check_peer(const char* verb, int peer);

  const std::shared_ptr<Engine> engine_;
  const c10::intrusive_ptr<hvd::Options> options_;
  const CompressionSettings compression_;
  std::mutex mutex_;
  /// Works between startCoalescing() and endCoalescing().
  std::optional<std::vector<WorkPtr>> coalesced_;
};

} // namespace hvd
