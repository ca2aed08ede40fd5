#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "device_group.h"
#include "host_group.h"
#include "engine/engine.h"
#include "options.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hvd {

/// The c10d backend "hvd": one part for tensors on the host and one for those
/// of a device, and what a group has as a whole. c10d's older names of the
/// verbs are overridden, because torch calls those, or forwards to them, in
/// every version.
///
/// Threads: every member may be called from any thread, without the GIL.
class ProcessGroupHVD final : public c10d::Backend {
 public:
  /// `store`: keys are this group's own. `transport`: of all its ranks.
  /// `device`: for tensors that are not on the host; null if there is none.
  /// `group`: its name, for messages. `stats_edges`: see Statistics.
  ProcessGroupHVD(
      c10::intrusive_ptr<c10d::Store> store,
      std::unique_ptr<Transport> transport,
      std::unique_ptr<DeviceTransport> device,
      c10::intrusive_ptr<hvd::Options> options,
      const std::string& group,
      const std::vector<double>& stats_edges);
  ~ProcessGroupHVD() override;

  const std::string getBackendName() const override {
    return "hvd";
  }
  /// A copy: c10d writes the name and the timeout of the group that it splits
  /// off, or merges this one into, to what it gets here.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
    return options_->clone();
  }
  c10::intrusive_ptr<hvd::Options> options() const {
    return options_;
  }
  /// Its keys are this group's own.
  c10::intrusive_ptr<c10d::Store> store() const {
    return store_;
  }
  /// What carries its messages, as "shm", "shm+tcp+nccl" or, alone, "none".
  std::string transport() const;

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
  /// No override where torch has no such verb: before 2.15. On the root alone
  /// `output` means anything.
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

  /// Only where the device does: NCCL needs it for messages both ways at once.
  bool supportsCoalescing() const override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  /// Rank 0 learns through the store who has come, so it can name who has not.
  void monitoredBarrier(const c10d::BarrierOptions&, bool wait_all_ranks)
      override;

  // Groups made of this one, each with its own settings or those of `opts`.

  bool supportsSplitting() const override {
    return true;
  }
  /// One of some of these ranks, `ranks` by their numbers here, on all of them;
  /// null elsewhere.
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  bool supportsShrinking() const override {
    return true;
  }
  /// One without the `excluded`, which may be dead. The others all call this,
  /// and need the store. `flags`: 1, as NCCL's, aborts this group first; with 0
  /// it stays as it is.
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& excluded,
      int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  /// One of `size` ranks, these and those of other groups that meet in `store`,
  /// which has given each its `rank`.
  c10::intrusive_ptr<c10d::Backend> merge(
      const c10::intrusive_ptr<c10d::Store>& store,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts,
      const int& rank,
      const int& size) override;

  /// Makes those groups: connecting ranks is Python's part.
  using Maker = std::function<c10::intrusive_ptr<c10d::Backend>(
      const c10::intrusive_ptr<c10d::Store>& store,
      int rank,
      int size,
      const c10::intrusive_ptr<hvd::Options>& options)>;
  static void set_maker(Maker maker);

  /// Connects the device's ranks now, not with their first collective.
  void eagerConnectSingleDevice(at::Device device) override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  c10d::ErrorType getError() override;

  void shutdown() override;
  void abort() override;

 private:
  /// Of a new group: `opts`, or this group's own under their name and timeout.
  /// `ranks`: the new group's, by their numbers here.
  c10::intrusive_ptr<hvd::Options> options_for(
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) const;

  /// The part that such tensors are for.
  template <typename T>
  c10d::Backend& group_of(const T& tensors) const {
    if (on_device_ && on_device_->takes(tensors)) {
      return *on_device_;
    }
    return *on_host_;
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<hvd::Options> options_;
  const std::string group_;
  const std::shared_ptr<Engine> engine_;
  c10::intrusive_ptr<HostGroup> on_host_;
  c10::intrusive_ptr<DeviceGroup> on_device_; ///< null if there is no device
  std::atomic<uint64_t> monitored_barriers_{0};
};

} // namespace hvd
