#include "process_group.h"

#include "monitored_barrier.h"
#include "registry.h"
#include "work.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace hvd {

namespace {

void check_lists(const char* verb, size_t count, size_t expected) {
  TORCH_CHECK(
      count == expected,
      "hvd: ",
      verb,
      " takes ",
      expected,
      " tensor(s) or list(s) here, not ",
      count);
}

at::Tensor single(const char* verb, const std::vector<at::Tensor>& tensors) {
  check_lists(verb, tensors.size(), 1);
  return tensors[0];
}

ProcessGroupHVD::Splitter& splitter_of_all() {
  static ProcessGroupHVD::Splitter splitter;
  return splitter;
}

std::vector<at::Tensor> flattened(
    const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<at::Tensor> result;
  for (const auto& list : lists) {
    result.insert(result.end(), list.begin(), list.end());
  }
  return result;
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
      compression_(compression_settings(*options_)),
      engine_(
          std::make_shared<Engine>(
              std::move(transport),
              std::move(device),
              Witness(store_, rank_, size_, group_),
              Registry::instance().add_statistics(group_, stats_edges),
              engine_settings(*options_, size_))) {
  if (engine_->device() != nullptr) {
    on_device_ = c10::make_intrusive<DeviceGroup>(engine_, options_);
  }
  Registry::instance().add(engine_);
}

ProcessGroupHVD::~ProcessGroupHVD() {
  if (engine_->forked()) {
    Registry::instance().bury(std::move(engine_));
  } else {
    engine_->shutdown();
  }
}

Arguments ProcessGroupHVD::arguments(std::chrono::milliseconds timeout) const {
  return {
      rank_,
      size_,
      timeout == c10d::kUnsetTimeout ? options_->timeout : timeout};
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::submit(
    c10d::OpType type,
    const char* title,
    const Tensors& inputs,
    Tensors results,
    std::vector<Collective> collectives,
    bool async) {
  if (!engine_->transport().shares_memory()) {
    for (auto& collective : collectives) {
      auto& signature = collective.signature;
      signature.codec = codec_for(signature, compression_, size_);
    }
  }
  // Alone, there is nobody to wait for.
  const bool caller_waits = !async || size_ == 1;
  return noted(
      CollectiveWork::submit(
          engine_,
          type,
          title,
          inputs,
          std::move(results),
          std::move(collectives),
          caller_waits));
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::noted(WorkPtr work) {
  std::lock_guard<std::mutex> lock(coalesced_mutex_);
  if (coalesced_) {
    coalesced_->push_back(work);
  }
  return work;
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::broadcast(
    Tensors& tensors,
    const c10d::BroadcastOptions& opts) {
  if (on_device(tensors)) {
    return on_device_->broadcast(tensors, opts);
  }
  const auto tensor = single("broadcast", tensors);
  return submit(
      c10d::OpType::BROADCAST,
      "hvd:broadcast",
      tensors,
      tensors,
      {arguments(opts.timeout).broadcast(tensor, opts.rootRank)},
      opts.asyncOp);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::allreduce(
    Tensors& tensors,
    const c10d::AllreduceOptions& opts) {
  if (on_device(tensors)) {
    return on_device_->allreduce(tensors, opts);
  }
  const auto tensor = single("all_reduce", tensors);
  return submit(
      c10d::OpType::ALLREDUCE,
      "hvd:all_reduce",
      tensors,
      tensors,
      {arguments(opts.timeout).allreduce(tensor, opts.reduceOp)},
      opts.asyncOp);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::allreduce_sparse(
    Tensors& tensors,
    const c10d::AllreduceOptions& opts) {
  if (on_device(tensors)) {
    return on_device_->allreduce_sparse(tensors, opts);
  }
  return allreduce(tensors, opts);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::allreduce_coalesced(
    Tensors& tensors,
    const c10d::AllreduceCoalescedOptions& opts) {
  if (on_device(tensors)) {
    return on_device_->allreduce_coalesced(tensors, opts);
  }
  TORCH_CHECK(!tensors.empty(), "hvd: all_reduce_coalesced of no tensors");
  const auto args = arguments(opts.timeout);
  std::vector<Collective> collectives;
  for (const auto& tensor : tensors) {
    collectives.push_back(args.allreduce(tensor, opts.reduceOp));
  }
  return submit(
      c10d::OpType::ALLREDUCE_COALESCED,
      "hvd:all_reduce",
      tensors,
      tensors,
      std::move(collectives),
      opts.asyncOp);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::reduce(
    Tensors& tensors,
    const c10d::ReduceOptions& opts) {
  if (on_device(tensors)) {
    return on_device_->reduce(tensors, opts);
  }
  const auto tensor = single("reduce", tensors);
  return submit(
      c10d::OpType::REDUCE,
      "hvd:reduce",
      tensors,
      tensors,
      {arguments(opts.timeout).reduce(tensor, opts.reduceOp, opts.rootRank)},
      opts.asyncOp);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::allgather(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  if (on_device(inputs)) {
    return on_device_->allgather(outputs, inputs, opts);
  }
  const auto input = single("all_gather", inputs);
  check_lists("all_gather", outputs.size(), 1);
  return submit(
      c10d::OpType::ALLGATHER,
      "hvd:all_gather",
      inputs,
      outputs[0],
      {arguments(opts.timeout).allgather(outputs[0], input)},
      opts.asyncOp);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& opts) {
  if (on_device(input)) {
    return on_device_->_allgather_base(output, input, opts);
  }
  return submit(
      c10d::OpType::_ALLGATHER_BASE,
      "hvd:all_gather",
      {input},
      {output},
      {arguments(opts.timeout).allgather_into(output, input)},
      opts.asyncOp);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::allgather_coalesced(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  if (on_device(inputs)) {
    return on_device_->allgather_coalesced(outputs, inputs, opts);
  }
  // outputs[rank][i] is for inputs[i] of that rank.
  check_lists("all_gather_coalesced", outputs.size(), getSize());
  const auto args = arguments(opts.timeout);
  std::vector<Collective> collectives;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_ranks;
    for (const auto& list : outputs) {
      check_lists("all_gather_coalesced", list.size(), inputs.size());
      of_ranks.push_back(list[i]);
    }
    collectives.push_back(args.allgather(of_ranks, inputs[i]));
  }
  TORCH_CHECK(!inputs.empty(), "hvd: all_gather_coalesced of no tensors");
  return submit(
      c10d::OpType::ALLGATHER_COALESCED,
      "hvd:all_gather",
      inputs,
      flattened(outputs),
      std::move(collectives),
      opts.asyncOp);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::allgather_into_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  if (on_device(inputs)) {
    return on_device_->allgather_into_tensor_coalesced(outputs, inputs, opts);
  }
  check_lists(
      "all_gather_into_tensor_coalesced", outputs.size(), inputs.size());
  TORCH_CHECK(
      !inputs.empty(), "hvd: all_gather_into_tensor_coalesced of no tensors");
  const auto args = arguments(opts.timeout);
  std::vector<Collective> collectives;
  for (size_t i = 0; i < inputs.size(); ++i) {
    collectives.push_back(args.allgather_into(outputs[i], inputs[i]));
  }
  return submit(
      c10d::OpType::COALESCED,
      "hvd:all_gather",
      inputs,
      outputs,
      std::move(collectives),
      opts.asyncOp);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::gather(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::GatherOptions& opts) {
  if (on_device(inputs)) {
    return on_device_->gather(outputs, inputs, opts);
  }
  const auto input = single("gather", inputs);
  const auto results = flattened(outputs);
  return submit(
      c10d::OpType::GATHER,
      "hvd:gather",
      inputs,
      results,
      {arguments(opts.timeout).gather(results, input, opts.rootRank)},
      opts.asyncOp);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ScatterOptions& opts) {
  if (on_device(outputs)) {
    return on_device_->scatter(outputs, inputs, opts);
  }
  const auto output = single("scatter", outputs);
  const auto sources = flattened(inputs);
  return submit(
      c10d::OpType::SCATTER,
      "hvd:scatter",
      sources,
      outputs,
      {arguments(opts.timeout).scatter(output, sources, opts.rootRank)},
      opts.asyncOp);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::reduce_scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ReduceScatterOptions& opts) {
  if (on_device(outputs)) {
    return on_device_->reduce_scatter(outputs, inputs, opts);
  }
  const auto output = single("reduce_scatter", outputs);
  check_lists("reduce_scatter", inputs.size(), 1);
  return submit(
      c10d::OpType::REDUCE_SCATTER,
      "hvd:reduce_scatter",
      inputs[0],
      outputs,
      {arguments(opts.timeout)
           .reduce_scatter(output, inputs[0], opts.reduceOp)},
      opts.asyncOp);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& opts) {
  if (on_device(output)) {
    return on_device_->_reduce_scatter_base(output, input, opts);
  }
  return submit(
      c10d::OpType::_REDUCE_SCATTER_BASE,
      "hvd:reduce_scatter",
      {input},
      {output},
      {arguments(opts.timeout)
           .reduce_scatter_from(output, input, opts.reduceOp)},
      opts.asyncOp);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::reduce_scatter_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::ReduceScatterOptions& opts) {
  if (on_device(outputs)) {
    return on_device_->reduce_scatter_tensor_coalesced(outputs, inputs, opts);
  }
  check_lists("reduce_scatter_tensor_coalesced", outputs.size(), inputs.size());
  TORCH_CHECK(
      !inputs.empty(), "hvd: reduce_scatter_tensor_coalesced of no tensors");
  const auto args = arguments(opts.timeout);
  std::vector<Collective> collectives;
  for (size_t i = 0; i < inputs.size(); ++i) {
    collectives.push_back(
        args.reduce_scatter_from(outputs[i], inputs[i], opts.reduceOp));
  }
  return submit(
      c10d::OpType::COALESCED,
      "hvd:reduce_scatter",
      inputs,
      outputs,
      std::move(collectives),
      opts.asyncOp);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& opts) {
  if (on_device(input)) {
    return on_device_->alltoall_base(
        output, input, output_splits, input_splits, opts);
  }
  return submit(
      c10d::OpType::ALLTOALL_BASE,
      "hvd:all_to_all",
      {input},
      {output},
      {arguments(opts.timeout)
           .alltoall_single(output, input, output_splits, input_splits)},
      opts.asyncOp);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::alltoall(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllToAllOptions& opts) {
  if (on_device(inputs)) {
    return on_device_->alltoall(outputs, inputs, opts);
  }
  return submit(
      c10d::OpType::ALLTOALL,
      "hvd:all_to_all",
      inputs,
      outputs,
      {arguments(opts.timeout).alltoall(outputs, inputs)},
      opts.asyncOp);
}

void ProcessGroupHVD::check_message(
    const char* verb,
    const Tensors& tensors,
    int tag) {
  engine_->check_usable(verb);
  check_lists(verb, tensors.size(), 1);
  const int max_tag = engine_->transport().max_tag();
  TORCH_CHECK(
      tag >= 0 && tag <= max_tag,
      "hvd: ",
      verb,
      " with tag ",
      tag,
      "; tags are 0 to ",
      max_tag);
}

void ProcessGroupHVD::check_peer(const char* verb, int peer) {
  TORCH_CHECK(
      peer >= 0 && peer < size_ && peer != rank_,
      "hvd: ",
      verb,
      " with rank ",
      peer,
      " on rank ",
      rank_,
      "; peers are the other ranks of 0 to ",
      size_ - 1);
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::send(
    Tensors& tensors,
    int peer,
    int tag) {
  if (on_device(tensors)) {
    return on_device_->send(tensors, peer, tag);
  }
  check_message("send", tensors, tag);
  check_peer("send", peer);
  const auto buffer = Arguments::message("send", tensors[0]);
  // Nothing is copied back after a send: the buffer is the tensor to the work.
  return noted(
      c10::make_intrusive<MessageWork>(
          engine_,
          c10d::OpType::SEND,
          "hvd:send",
          peer,
          buffer,
          buffer,
          options_->timeout,
          [&](Transport& transport) {
            return transport.send(buffer, peer, tag);
          }));
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::recv(
    Tensors& tensors,
    int peer,
    int tag) {
  if (on_device(tensors)) {
    return on_device_->recv(tensors, peer, tag);
  }
  check_message("recv", tensors, tag);
  check_peer("recv", peer);
  const auto buffer = Arguments::message("recv", tensors[0]);
  return noted(
      c10::make_intrusive<MessageWork>(
          engine_,
          c10d::OpType::RECV,
          "hvd:recv",
          peer,
          buffer,
          tensors[0],
          options_->timeout,
          [&](Transport& transport) {
            return transport.recv(buffer, peer, tag);
          }));
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::recvAnysource(
    Tensors& tensors,
    int tag) {
  if (on_device(tensors)) {
    return on_device_->recvAnysource(tensors, tag);
  }
  check_message("recv", tensors, tag);
  const auto buffer = Arguments::message("recv", tensors[0]);
  return noted(
      c10::make_intrusive<MessageWork>(
          engine_,
          c10d::OpType::RECVANYSOURCE,
          "hvd:recvAnySource",
          -1,
          buffer,
          tensors[0],
          options_->timeout,
          [&](Transport& transport) {
            return transport.recv_any(buffer, tag);
          }));
}

bool ProcessGroupHVD::supportsCoalescing() const {
  return on_device_ && engine_->device()->backend().supportsCoalescing();
}

void ProcessGroupHVD::startCoalescing() {
  std::lock_guard<std::mutex> lock(coalesced_mutex_);
  coalesced_.emplace();
  on_device_->startCoalescing();
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::endCoalescing() {
  std::vector<WorkPtr> works;
  {
    std::lock_guard<std::mutex> lock(coalesced_mutex_);
    works = std::exchange(coalesced_, std::nullopt).value_or(works);
  }
  if (auto work = on_device_->endCoalescing()) {
    works.push_back(std::move(work));
  }
  if (works.size() == 1) {
    return works[0];
  }
  return c10::make_intrusive<JointWork>(std::move(works));
}

ProcessGroupHVD::WorkPtr ProcessGroupHVD::barrier(
    const c10d::BarrierOptions& opts) {
  if (on_device_) {
    on_device_->drain_stream();
  }
  return submit(
      c10d::OpType::BARRIER,
      "hvd:barrier",
      {},
      {},
      {arguments(opts.timeout).barrier()},
      opts.asyncOp);
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

void ProcessGroupHVD::set_splitter(Splitter splitter) {
  splitter_of_all() = std::move(splitter);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupHVD::split(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) {
    return {};
  }
  auto options = c10::dynamic_intrusive_pointer_cast<hvd::Options>(opts);
  options = c10::make_intrusive<hvd::Options>(options ? *options : *options_);
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
  return splitter_of_all()(
      store, ranks, static_cast<int>(own - ranks.begin()), options);
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
