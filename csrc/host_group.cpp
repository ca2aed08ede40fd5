#include "host_group.h"

#include "work.h"

#include <c10/util/Exception.h>

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

} // namespace

HostGroup::HostGroup(
    std::shared_ptr<Engine> engine,
    c10::intrusive_ptr<hvd::Options> options)
    : Backend(engine->transport().rank(), engine->transport().size()),
      engine_(std::move(engine)),
      options_(std::move(options)),
      compression_(compression_settings(*options_)) {}

Arguments HostGroup::arguments(std::chrono::milliseconds timeout) const {
  return {
      *engine_, timeout == c10d::kUnsetTimeout ? options_->timeout : timeout};
}

HostGroup::WorkPtr HostGroup::submit(
    c10d::OpType type,
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
  const auto record = CommsRecord::start(
      *options_,
      *engine_,
      {name(collectives[0].signature.verb),
       inputs,
       results,
       &collectives[0],
       async});
  // Alone, there is nobody to wait for.
  const bool caller_waits = !async || size_ == 1;
  return noted(
      CollectiveWork::submit(
          engine_,
          type,
          inputs,
          std::move(results),
          std::move(collectives),
          caller_waits));
}

std::unique_ptr<CommsRecord> HostGroup::record(
    const char* verb,
    int peer,
    const Tensors& tensors) {
  return CommsRecord::start(
      *options_, *engine_, {verb, tensors, tensors, nullptr, true, peer});
}

HostGroup::WorkPtr HostGroup::noted(WorkPtr work) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (coalesced_) {
    coalesced_->push_back(work);
  }
  return work;
}

HostGroup::WorkPtr HostGroup::broadcast(
    Tensors& tensors,
    const c10d::BroadcastOptions& opts) {
  const auto tensor = single("broadcast", tensors);
  return submit(
      c10d::OpType::BROADCAST,
      tensors,
      tensors,
      only(arguments(opts.timeout).broadcast(tensor, opts.rootRank)),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::allreduce(
    Tensors& tensors,
    const c10d::AllreduceOptions& opts) {
  const auto tensor = single("all_reduce", tensors);
  return submit(
      c10d::OpType::ALLREDUCE,
      tensors,
      tensors,
      only(arguments(opts.timeout).allreduce(tensor, opts.reduceOp)),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::allreduce_sparse(
    Tensors& tensors,
    const c10d::AllreduceOptions& opts) {
  return allreduce(tensors, opts);
}

HostGroup::WorkPtr HostGroup::allreduce_coalesced(
    Tensors& tensors,
    const c10d::AllreduceCoalescedOptions& opts) {
  TORCH_CHECK(!tensors.empty(), "hvd: all_reduce_coalesced of no tensors");
  const auto args = arguments(opts.timeout);
  std::vector<Collective> collectives;
  for (const auto& tensor : tensors) {
    collectives.push_back(args.allreduce(tensor, opts.reduceOp));
  }
  return submit(
      c10d::OpType::ALLREDUCE_COALESCED,
      tensors,
      tensors,
      std::move(collectives),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::reduce(
    Tensors& tensors,
    const c10d::ReduceOptions& opts) {
  const auto tensor = single("reduce", tensors);
  return submit(
      c10d::OpType::REDUCE,
      tensors,
      tensors,
      only(
          arguments(opts.timeout).reduce(tensor, opts.reduceOp, opts.rootRank)),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::allgather(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  const auto input = single("all_gather", inputs);
  check_lists("all_gather", outputs.size(), 1);
  return submit(
      c10d::OpType::ALLGATHER,
      inputs,
      outputs[0],
      only(arguments(opts.timeout).allgather(outputs[0], input)),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& opts) {
  return submit(
      c10d::OpType::_ALLGATHER_BASE,
      {input},
      {output},
      only(arguments(opts.timeout).allgather_into(output, input)),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::allgather_coalesced(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
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
      inputs,
      flattened(outputs),
      std::move(collectives),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::allgather_into_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
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
      inputs,
      outputs,
      std::move(collectives),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::gather(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::GatherOptions& opts) {
  const auto input = single("gather", inputs);
  const auto results = flattened(outputs);
  return submit(
      c10d::OpType::GATHER,
      inputs,
      results,
      only(arguments(opts.timeout).gather(results, input, opts.rootRank)),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::gather_into_tensor(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::GatherOptions& opts) {
  return submit(
      c10d::OpType::GATHER,
      {input},
      {output},
      only(arguments(opts.timeout).gather_into(output, input, opts.rootRank)),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ScatterOptions& opts) {
  const auto output = single("scatter", outputs);
  const auto sources = flattened(inputs);
  return submit(
      c10d::OpType::SCATTER,
      sources,
      outputs,
      only(arguments(opts.timeout).scatter(output, sources, opts.rootRank)),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::reduce_scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ReduceScatterOptions& opts) {
  const auto output = single("reduce_scatter", outputs);
  check_lists("reduce_scatter", inputs.size(), 1);
  return submit(
      c10d::OpType::REDUCE_SCATTER,
      inputs[0],
      outputs,
      only(arguments(opts.timeout)
               .reduce_scatter(output, inputs[0], opts.reduceOp)),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& opts) {
  return submit(
      c10d::OpType::_REDUCE_SCATTER_BASE,
      {input},
      {output},
      only(arguments(opts.timeout)
               .reduce_scatter_from(output, input, opts.reduceOp)),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::ReduceScatterOptions& opts) {
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
      inputs,
      outputs,
      std::move(collectives),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& opts) {
  return submit(
      c10d::OpType::ALLTOALL_BASE,
      {input},
      {output},
      only(arguments(opts.timeout)
               .alltoall_single(output, input, output_splits, input_splits)),
      opts.asyncOp);
}

HostGroup::WorkPtr HostGroup::alltoall(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllToAllOptions& opts) {
  return submit(
      c10d::OpType::ALLTOALL,
      inputs,
      outputs,
      only(arguments(opts.timeout).alltoall(outputs, inputs)),
      opts.asyncOp);
}

void HostGroup::check_message(
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

void HostGroup::check_peer(const char* verb, int peer) {
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

HostGroup::WorkPtr HostGroup::send(Tensors& tensors, int peer, int tag) {
  check_message("send", tensors, tag);
  check_peer("send", peer);
  const auto buffer = arguments(options_->timeout).to_send(tensors[0]);
  const auto record = this->record("send", peer, tensors);
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

HostGroup::WorkPtr HostGroup::recv(Tensors& tensors, int peer, int tag) {
  check_message("recv", tensors, tag);
  check_peer("recv", peer);
  const auto buffer = arguments(options_->timeout).to_receive(tensors[0]);
  const auto record = this->record("recv", peer, tensors);
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

HostGroup::WorkPtr HostGroup::recvAnysource(Tensors& tensors, int tag) {
  check_message("recv", tensors, tag);
  TORCH_CHECK(size_ > 1, "hvd: recv in a group of one rank; it has no peers");
  const auto buffer = arguments(options_->timeout).to_receive(tensors[0]);
  const auto record = this->record("recv", -1, tensors);
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

HostGroup::WorkPtr HostGroup::barrier(const c10d::BarrierOptions& opts) {
  return submit(
      c10d::OpType::BARRIER,
      {},
      {},
      only(arguments(opts.timeout).barrier()),
      opts.asyncOp);
}

void HostGroup::startCoalescing() {
  std::lock_guard<std::mutex> lock(mutex_);
  coalesced_.emplace();
}

HostGroup::WorkPtr HostGroup::endCoalescing() {
  std::vector<WorkPtr> works;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    works = std::exchange(coalesced_, std::nullopt).value_or(works);
  }
  if (works.empty()) {
    return {};
  }
  return c10::make_intrusive<JointWork>(std::move(works));
}

} // namespace hvd
