#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "arguments.h"
#include "engine/engine.h"
#include "options.h"

#include <memory>
#include <string>
#include <vector>

namespace hvd {

/// The c10d backend "hvd": checks and translates the calls of c10d; the engine
/// does the rest. c10d's older names of the verbs are overridden, because torch
/// calls those, or forwards to them, in every version.
///
/// Threads: every member may be called from any thread, without the GIL.
class ProcessGroupHVD final : public c10d::Backend {
 public:
  /// `store`: keys are this group's own. `transport`: of all its ranks.
  /// `group`: its name, for messages. `stats_edges`: see Statistics.
  ProcessGroupHVD(
      c10::intrusive_ptr<c10d::Store> store,
      std::unique_ptr<Transport> transport,
      c10::intrusive_ptr<hvd::Options> options,
      const std::string& group,
      const std::vector<double>& stats_edges);
  ~ProcessGroupHVD() override;

  const std::string getBackendName() const override {
    return "hvd";
  }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
    return options_;
  }
  c10::intrusive_ptr<hvd::Options> options() const {
    return options_;
  }

  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

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

  /// Rank 0 learns through the store who has come, so it can name who has not.
  void monitoredBarrier(const c10d::BarrierOptions&, bool wait_all_ranks)
      override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  c10d::ErrorType getError() override;

  void shutdown() override;
  void abort() override;

 private:
  Arguments arguments(std::chrono::milliseconds timeout) const;
  WorkPtr submit(
      c10d::OpType type,
      const char* title,
      const Tensors& inputs,
      Tensors results,
      std::vector<Collective> collectives,
      bool async);
  void check_message(const char* verb, const Tensors& tensors, int tag);
  void check_peer(const char* verb, int peer);

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<hvd::Options> options_;
  const std::string group_;
  const CompressionSettings compression_;
  std::shared_ptr<Engine> engine_;
  std::atomic<uint64_t> monitored_barriers_{0};
};

} // namespace hvd
