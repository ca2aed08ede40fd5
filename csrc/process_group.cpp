#include "process_group.h"

#include "monitored_barrier.h"
#include "registry.h"
#include "work.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>

namespace hvd {

namespace {

ProcessGroupHVD::Maker& maker_of_all() {
  static ProcessGroupHVD::Maker maker;
  return maker;
}

/// In a forked child, whoever is the last to hold an engine of the parent's
/// leaves it as it is: its threads do not exist there.
void destroy_or_leave(Engine* engine) {
  std::unique_ptr<Engine> owner(engine);
  if (engine->forked()) {
    (void)owner.release();
  }
}

} // namespace

ProcessGroupHVD::ProcessGroupHVD(
    c10::intrusive_ptr<c10d::Store> store,
    std::unique_ptr<Transport> transport,
    std::unique_ptr<DeviceTransport> device,
    c10::intrusive_ptr<hvd::Options> options,
    const std::string& group,
    const std::vector<double>& stats_edges)
    : Backend(transport->rank(), transport->size()),
      store_(std::move(store)),
      options_(std::move(options)),
      group_(group),
      engine_(
          std::make_unique<Engine>(
              std::move(transport),
              std::move(device),
              Witness(store_, rank_, size_, group_),
              Registry::instance().add_statistics(group_, stats_edges),
              engine_settings(*options_, size_))
              .release(),
          &destroy_or_leave) {
  on_host_ = c10::make_intrusive<HostGroup>(engine_, options_);
  if (engine_->device() != nullptr) {
    on_device_ = c10::make_intrusive<DeviceGroup>(engine_, options_);
  }
  Registry::instance().add(engine_);
}

ProcessGroupHVD::~ProcessGroupHVD() {
  engine_->shutdown();
}

std::string ProcessGroupHVD::transport() const {
  const std::string on_host = engine_->transport().name();
  const auto* device = engine_->device();
  return device != nullptr ? on_host + "+" + device->name() : on_host;
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::broadcast(
    Tensors& tensors,
    const c10d::BroadcastOptions& opts) {
  return group_of(tensors).broadcast(tensors, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::allreduce(
    Tensors& tensors,
    const c10d::AllreduceOptions& opts) {
  return group_of(tensors).allreduce(tensors, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::allreduce_sparse(
    Tensors& tensors,
    const c10d::AllreduceOptions& opts) {
  return group_of(tensors).allreduce_sparse(tensors, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::allreduce_coalesced(
    Tensors& tensors,
    const c10d::AllreduceCoalescedOptions& opts) {
  return group_of(tensors).allreduce_coalesced(tensors, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::reduce(
    Tensors& tensors,
    const c10d::ReduceOptions& opts) {
  return group_of(tensors).reduce(tensors, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::allgather(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  return group_of(inputs).allgather(outputs, inputs, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& opts) {
  return group_of(input)._allgather_base(output, input, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::allgather_coalesced(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  return group_of(inputs).allgather_coalesced(outputs, inputs, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::allgather_into_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  return group_of(inputs).allgather_into_tensor_coalesced(
      outputs, inputs, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::gather(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::GatherOptions& opts) {
  return group_of(inputs).gather(outputs, inputs, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::gather_into_tensor(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::GatherOptions& opts) {
  return on_device_ && on_device_->takes(input)
      ? on_device_->gather_into_tensor(output, input, opts)
      : on_host_->gather_into_tensor(output, input, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ScatterOptions& opts) {
  return group_of(outputs).scatter(outputs, inputs, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::reduce_scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ReduceScatterOptions& opts) {
  return group_of(outputs).reduce_scatter(outputs, inputs, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& opts) {
  return group_of(output)._reduce_scatter_base(output, input, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::reduce_scatter_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::ReduceScatterOptions& opts) {
  return group_of(outputs).reduce_scatter_tensor_coalesced(
      outputs, inputs, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& opts) {
  return group_of(input).alltoall_base(
      output, input, output_splits, input_splits, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::alltoall(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllToAllOptions& opts) {
  return group_of(inputs).alltoall(outputs, inputs, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::send(
    Tensors& tensors,
    int peer,
    int tag) {
  return group_of(tensors).send(tensors, peer, tag);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::recv(
    Tensors& tensors,
    int peer,
    int tag) {
  return group_of(tensors).recv(tensors, peer, tag);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::recvAnysource(
    Tensors& tensors,
    int tag) {
  return group_of(tensors).recvAnysource(tensors, tag);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::barrier(
    const c10d::BarrierOptions& opts) {
  if (on_device_) {
    on_device_->drain_stream(opts.device);
  }
  return on_host_->barrier(opts);
}

bool ProcessGroupHVD::supportsCoalescing() const {
  return on_device_ && engine_->device()->backend().supportsCoalescing();
}

void ProcessGroupHVD::startCoalescing() {
  on_host_->startCoalescing();
  if (on_device_) {
    on_device_->startCoalescing();
  }
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::endCoalescing() {
  std::vector<WorkPtr> works;
  for (c10d::Backend* part :
       {static_cast<c10d::Backend*>(on_host_.get()),
        static_cast<c10d::Backend*>(on_device_.get())}) {
    if (auto work = part != nullptr ? part->endCoalescing() : nullptr) {
      works.push_back(std::move(work));
    }
  }
  return c10::make_intrusive<JointWork>(std::move(works));
}

void ProcessGroupHVD::monitoredBarrier(
    const c10d::BarrierOptions& opts,
    bool wait_all_ranks) {
  engine_->check_usable("monitored_barrier");
  const auto timeout =
      opts.timeout == c10d::kUnsetTimeout ? options_->timeout : opts.timeout;
  monitored_barrier(
      *store_,
      "monitored_barrier/" + std::to_string(monitored_barriers_++),
      rank_,
      size_,
      timeout,
      wait_all_ranks);
}

void ProcessGroupHVD::set_maker(Maker maker) {
  maker_of_all() = std::move(maker);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupHVD::split(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) {
    return {};
  }
  return maker_of_all()(
      store,
      static_cast<int>(own - ranks.begin()),
      static_cast<int>(ranks.size()),
      options_for(ranks, opts));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupHVD::shrink(
    const std::vector<int64_t>& excluded,
    int flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  constexpr int kAbort = 1; // torch.distributed.SHRINK_ABORT
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(excluded.begin(), excluded.end(), rank) == excluded.end()) {
      ranks.push_back(rank);
    }
  }
  const auto without = "without ranks " + c10::Join(", ", excluded);
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  TORCH_CHECK_VALUE(
      own != ranks.end(),
      "hvd: rank ",
      rank_,
      " cannot make a group ",
      without);
  if (flags & kAbort) {
    engine_->abort("hvd: process group " + group_ + " goes on " + without);
  }
  const auto options = options_for(ranks, opts);
  if (options_->global_ranks_in_group.empty()) {
    options->global_ranks_in_group.clear(); // torch numbers its ranks anew
  }
  return maker_of_all()(
      c10::make_intrusive<c10d::PrefixStore>(without, store_),
      static_cast<int>(own - ranks.begin()),
      static_cast<int>(ranks.size()),
      options);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupHVD::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts,
    const int& rank,
    const int& size) {
  return maker_of_all()(store, rank, size, options_for({}, opts));
}

c10::intrusive_ptr<hvd::Options> ProcessGroupHVD::options_for(
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) const {
  const auto given = c10::dynamic_intrusive_pointer_cast<hvd::Options>(opts);
  auto options = c10::make_intrusive<hvd::Options>(given ? *given : *options_);
  if (opts) {
    options->timeout = opts->timeout;
    options->group_name = opts->group_name;
  }
  options->global_ranks_in_group.clear();
  for (const int rank : ranks) {
    const auto& global = options_->global_ranks_in_group;
    options->global_ranks_in_group.push_back(
        global.empty() ? static_cast<uint64_t>(rank) : global[rank]);
  }
  return options;
}

void ProcessGroupHVD::eagerConnectSingleDevice(at::Device device) {
  if (on_device_ && device.type() == engine_->device()->type()) {
    engine_->device()->backend().eagerConnectSingleDevice(device);
  }
}

uint64_t ProcessGroupHVD::getSequenceNumberForGroup() {
  return engine_->submitted();
}

void ProcessGroupHVD::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  if (on_device_) {
    engine_->device()->backend().setTimeout(timeout);
  }
}

c10d::ErrorType ProcessGroupHVD::getError() {
  return engine_->failed() ? c10d::ErrorType::COMM_ERROR
                           : c10d::ErrorType::SUCCESS;
}

void ProcessGroupHVD::shutdown() {
  engine_->shutdown();
}

void ProcessGroupHVD::abort() {
  engine_->abort("hvd: process group " + group_ + " was aborted");
}

} // namespace hvd
