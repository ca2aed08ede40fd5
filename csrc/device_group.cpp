#include "device_group.h"

#include "arguments.h"
#include "checks.h"
#include "codec/device_kernels.h"
#include "device_work.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <shared_mutex>

namespace hvd {

namespace {

// The tensors among the arguments of a backend's verb.
void append(std::vector<at::Tensor>& all, const at::Tensor& tensor) {
  all.push_back(tensor);
}

void append(
    std::vector<at::Tensor>& all,
    const std::vector<at::Tensor>& tensors) {
  all.insert(all.end(), tensors.begin(), tensors.end());
}

void append(
    std::vector<at::Tensor>& all,
    const std::vector<std::vector<at::Tensor>>& lists) {
  append(all, flattened(lists));
}

void append(
    std::vector<at::Tensor>& /*all*/,
    const std::vector<int64_t>& /*splits*/) {}

// What every backend adds up: no rank alone must fail to launch its part of
// what is fused.
bool is_own_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

bool is_own_op(const c10d::ReduceOp& op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::AVG:
    case c10d::ReduceOp::MIN:
    case c10d::ReduceOp::MAX:
    case c10d::ReduceOp::PRODUCT:
      return true;
    default:
      return false;
  }
}

} // namespace

DeviceGroup::DeviceGroup(
    std::shared_ptr<Engine> engine,
    c10::intrusive_ptr<hvd::Options> options)
    : Backend(engine->transport().rank(), engine->transport().size()),
      engine_(std::move(engine)),
      options_(std::move(options)),
      compression_(compression_settings(*options_)),
      device_(*engine_->device()) {}

std::chrono::milliseconds DeviceGroup::timeout_or_default(
    std::chrono::milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
}

DeviceGroup::Call DeviceGroup::call(
    c10d::OpType type,
    Verb verb,
    Tensors results,
    std::chrono::milliseconds timeout) const {
  TORCH_CHECK(!results.empty(), "hvd: ", name(verb), " of no tensors");
  const auto& like = results[0];
  const auto device = like.device();
  check_not_captured(name(verb), device);
  Call call{type, {}, device, {}, timeout_or_default(timeout)};
  call.signature.verb = verb;
  call.signature.dtype = like.scalar_type();
  call.signature.device = device.type();
  // Of the others it differs from rank to rank.
  const bool is_alike = verb == Verb::Allreduce || verb == Verb::Broadcast ||
      verb == Verb::Reduce || verb == Verb::Allgather;
  for (size_t i = 0; is_alike && i < results.size(); ++i) {
    call.signature.count += results[i].numel();
  }
  call.results = std::move(results);
  return call;
}

DeviceGroup::WorkPtr DeviceGroup::submit(
    Call call,
    std::vector<Collective> collectives) {
  const auto& first = collectives[0];
  // A backend describes its own calls.
  const CommsRecord::Call described{
      name(call.signature.verb), call.results, call.results, &first, true};
  const auto record = first.inputs.empty()
      ? nullptr
      : CommsRecord::start(*options_, *engine_, described);
  auto work = DeviceWork::submit(
      engine_, call.type, std::move(call.results), std::move(collectives));
  std::lock_guard<std::mutex> lock(mutex_);
  last_ = c10::weak_intrusive_ptr<DeviceWork>(work);
  return work;
}

DeviceGroup::WorkPtr DeviceGroup::put_off(
    Call call,
    DeviceCall::Launch launch,
    const Tensors& moved) {
  if (auto work = coalesce(launch, moved)) {
    return work;
  }
  Collective collective;
  collective.signature = call.signature;
  collective.timeout = call.timeout;
  collective.device_call =
      std::make_shared<DeviceCall>(call.device, std::move(launch), moved);
  return submit(std::move(call), only(std::move(collective)));
}

template <typename BackendVerb, typename VerbOptions, typename... Arguments>
DeviceGroup::WorkPtr DeviceGroup::pass_on(
    Call call,
    BackendVerb verb,
    VerbOptions opts,
    Arguments... arguments) {
  opts.timeout = call.timeout;
  opts.asyncOp = true; // its work is what ours waits for
  Tensors moved;
  (append(moved, arguments), ...);
  return put_off(
      std::move(call),
      [=](c10d::Backend& backend) mutable -> WorkPtr {
        return (backend.*verb)(arguments..., opts);
      },
      moved);
}

std::optional<Collective> DeviceGroup::own_allreduce(
    const at::Tensor& tensor,
    const c10d::ReduceOp& op,
    std::chrono::milliseconds timeout) const {
  if (size_ == 1 || tensor.layout() != at::kStrided ||
      !tensor.is_contiguous() || tensor.numel() == 0 ||
      !is_own_dtype(tensor.scalar_type()) || !is_own_op(op)) {
    return std::nullopt;
  }
  Collective collective;
  auto& signature = collective.signature;
  signature.verb = Verb::Allreduce;
  signature.op = op;
  signature.dtype = tensor.scalar_type();
  signature.device = tensor.device().type();
  signature.count = tensor.numel();
  if (!engine_->transport().shares_memory()) {
    signature.codec = codec_for(signature, compression_, size_);
  }
  const bool encodes = is_compressed(collective);
  if (!encodes && tensor_bytes(collective) > options_->fusion_cutoff.value()) {
    return std::nullopt;
  }
  TORCH_CHECK(
      !encodes || device_kernels(device_.type()) != nullptr,
      "hvd: all_reduce with compression ",
      hvd::name(signature.codec.compression),
      " of a tensor on ",
      tensor.device(),
      " needs torch_hvd._cuda, which this installation lacks; README says how "
      "to build it. torch_hvd.compression(\"none\") does without");
  collective.inputs = collective.outputs = {tensor.detach()};
  collective.timeout = timeout_or_default(timeout);
  collective.divisor = size_;
  collective.device_call = std::make_shared<DeviceCall>(tensor.device());
  return collective;
}

DeviceGroup::WorkPtr DeviceGroup::broadcast(
    Tensors& tensors,
    const c10d::BroadcastOptions& opts) {
  auto passed =
      call(c10d::OpType::BROADCAST, Verb::Broadcast, tensors, opts.timeout);
  passed.signature.root = static_cast<int32_t>(opts.rootRank);
  return pass_on(std::move(passed), &Backend::broadcast, opts, tensors);
}

DeviceGroup::WorkPtr DeviceGroup::allreduce(
    Tensors& tensors,
    const c10d::AllreduceOptions& opts) {
  auto passed =
      call(c10d::OpType::ALLREDUCE, Verb::Allreduce, tensors, opts.timeout);
  passed.signature.op = opts.reduceOp;
  if (!is_coalescing() && tensors.size() == 1) {
    if (auto own = own_allreduce(tensors[0], opts.reduceOp, opts.timeout)) {
      return submit(std::move(passed), only(std::move(*own)));
    }
  }
  return pass_on(std::move(passed), &Backend::allreduce, opts, tensors);
}

DeviceGroup::WorkPtr DeviceGroup::allreduce_sparse(
    Tensors& tensors,
    const c10d::AllreduceOptions& opts) {
  auto passed = call(
      c10d::OpType::_ALLREDUCE_SPARSE,
      Verb::SparseAllreduce,
      tensors,
      opts.timeout);
  passed.signature.op = opts.reduceOp;
  return pass_on(std::move(passed), &Backend::allreduce_sparse, opts, tensors);
}

DeviceGroup::WorkPtr DeviceGroup::allreduce_coalesced(
    Tensors& tensors,
    const c10d::AllreduceCoalescedOptions& opts) {
  auto passed = call(
      c10d::OpType::ALLREDUCE_COALESCED,
      Verb::Allreduce,
      tensors,
      opts.timeout);
  passed.signature.op = opts.reduceOp;
  std::vector<Collective> own;
  for (const auto& tensor : tensors) {
    if (auto one = own_allreduce(tensor, opts.reduceOp, opts.timeout)) {
      own.push_back(std::move(*one));
    }
  }
  if (own.size() == tensors.size() && !is_coalescing()) {
    return submit(std::move(passed), std::move(own));
  }
  return pass_on(
      std::move(passed), &Backend::allreduce_coalesced, opts, tensors);
}

DeviceGroup::WorkPtr DeviceGroup::reduce(
    Tensors& tensors,
    const c10d::ReduceOptions& opts) {
  auto passed = call(c10d::OpType::REDUCE, Verb::Reduce, tensors, opts.timeout);
  passed.signature.op = opts.reduceOp;
  passed.signature.root = static_cast<int32_t>(opts.rootRank);
  return pass_on(std::move(passed), &Backend::reduce, opts, tensors);
}

DeviceGroup::WorkPtr DeviceGroup::allgather(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  return pass_on(
      call(
          c10d::OpType::ALLGATHER,
          Verb::Allgather,
          flattened(outputs),
          opts.timeout),
      &Backend::allgather,
      opts,
      outputs,
      inputs);
}

DeviceGroup::WorkPtr DeviceGroup::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& opts) {
  return pass_on(
      call(
          c10d::OpType::_ALLGATHER_BASE,
          Verb::Allgather,
          {output},
          opts.timeout),
      &Backend::_allgather_base,
      opts,
      output,
      input);
}

DeviceGroup::WorkPtr DeviceGroup::allgather_coalesced(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  return pass_on(
      call(
          c10d::OpType::ALLGATHER_COALESCED,
          Verb::Allgather,
          flattened(outputs),
          opts.timeout),
      &Backend::allgather_coalesced,
      opts,
      outputs,
      inputs);
}

DeviceGroup::WorkPtr DeviceGroup::allgather_into_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  return pass_on(
      call(c10d::OpType::COALESCED, Verb::Allgather, outputs, opts.timeout),
      &Backend::allgather_into_tensor_coalesced,
      opts,
      outputs,
      inputs);
}

DeviceGroup::WorkPtr DeviceGroup::gather(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::GatherOptions& opts) {
  auto passed = call(
      c10d::OpType::GATHER,
      Verb::Gather,
      outputs.empty() ? inputs : flattened(outputs),
      opts.timeout);
  passed.signature.root = static_cast<int32_t>(opts.rootRank);
  return pass_on(std::move(passed), &Backend::gather, opts, outputs, inputs);
}

DeviceGroup::WorkPtr DeviceGroup::gather_into_tensor(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::GatherOptions& opts) {
  TensorLists outputs;
  if (opts.rootRank == getRank()) {
    check_numel(Verb::Gather, "the output", output, input.numel() * getSize());
    TORCH_CHECK(
        output.is_contiguous(),
        "hvd: gather: the output, of shape ",
        output.sizes(),
        " and strides ",
        output.strides(),
        ", is not contiguous, as it must be on a device");
    auto shape = input.sizes().vec();
    shape.insert(shape.begin(), getSize());
    outputs.push_back(output.view(shape).unbind());
  }
  Tensors inputs{input};
  return gather(outputs, inputs, opts);
}

DeviceGroup::WorkPtr DeviceGroup::scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ScatterOptions& opts) {
  auto passed =
      call(c10d::OpType::SCATTER, Verb::Scatter, outputs, opts.timeout);
  passed.signature.root = static_cast<int32_t>(opts.rootRank);
  return pass_on(std::move(passed), &Backend::scatter, opts, outputs, inputs);
}

DeviceGroup::WorkPtr DeviceGroup::reduce_scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ReduceScatterOptions& opts) {
  auto passed = call(
      c10d::OpType::REDUCE_SCATTER, Verb::ReduceScatter, outputs, opts.timeout);
  passed.signature.op = opts.reduceOp;
  return pass_on(
      std::move(passed), &Backend::reduce_scatter, opts, outputs, inputs);
}

DeviceGroup::WorkPtr DeviceGroup::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& opts) {
  auto passed = call(
      c10d::OpType::_REDUCE_SCATTER_BASE,
      Verb::ReduceScatter,
      {output},
      opts.timeout);
  passed.signature.op = opts.reduceOp;
  return pass_on(
      std::move(passed), &Backend::_reduce_scatter_base, opts, output, input);
}

DeviceGroup::WorkPtr DeviceGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::ReduceScatterOptions& opts) {
  auto passed =
      call(c10d::OpType::COALESCED, Verb::ReduceScatter, outputs, opts.timeout);
  passed.signature.op = opts.reduceOp;
  return pass_on(
      std::move(passed),
      &Backend::reduce_scatter_tensor_coalesced,
      opts,
      outputs,
      inputs);
}

DeviceGroup::WorkPtr DeviceGroup::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& opts) {
  return pass_on(
      call(c10d::OpType::ALLTOALL_BASE, Verb::Alltoall, {output}, opts.timeout),
      &Backend::alltoall_base,
      opts,
      output,
      input,
      output_splits,
      input_splits);
}

DeviceGroup::WorkPtr DeviceGroup::alltoall(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllToAllOptions& opts) {
  return pass_on(
      call(c10d::OpType::ALLTOALL, Verb::Alltoall, outputs, opts.timeout),
      &Backend::alltoall,
      opts,
      outputs,
      inputs);
}

DeviceGroup::WorkPtr DeviceGroup::message(
    const char* verb,
    DeviceCall::Launch launch,
    const Tensors& moved) {
  engine_->check_usable(verb);
  if (auto work = coalesce(launch, moved)) {
    return work;
  }
  std::shared_lock<std::shared_mutex> calling(device_.calling());
  return launch(device_.backend());
}

DeviceGroup::WorkPtr DeviceGroup::send(Tensors& tensors, int peer, int tag) {
  const auto launch = [tensors, peer, tag](auto& backend) mutable {
    return backend.send(tensors, peer, tag);
  };
  return message("send", launch, tensors);
}

DeviceGroup::WorkPtr DeviceGroup::recv(Tensors& tensors, int peer, int tag) {
  const auto launch = [tensors, peer, tag](auto& backend) mutable {
    return backend.recv(tensors, peer, tag);
  };
  return message("recv", launch, tensors);
}

DeviceGroup::WorkPtr DeviceGroup::recvAnysource(Tensors& tensors, int tag) {
  const auto launch = [tensors, tag](auto& backend) mutable {
    return backend.recvAnysource(tensors, tag);
  };
  return message("recv", launch, tensors);
}

void DeviceGroup::drain_stream(std::optional<c10::Device> named) const {
  std::vector<c10::Device> devices;
  if (named && named->type() == device_.type() && named->has_index()) {
    devices = {*named};
  } else {
    devices = device_.used();
  }
  if (devices.empty()) {
    devices = {c10::impl::VirtualGuardImpl(device_.type()).getDevice()};
  }
  for (const auto device : devices) {
    StreamMark(device).wait();
  }
}

bool DeviceGroup::is_coalescing() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return coalesced_.has_value();
}

DeviceGroup::WorkPtr DeviceGroup::coalesce(
    DeviceCall::Launch& launch,
    const Tensors& moved) {
  std::lock_guard<std::mutex> lock(mutex_);
  return coalesced_ ? coalesced_->put_off(std::move(launch), moved) : WorkPtr();
}

void DeviceGroup::startCoalescing() {
  std::lock_guard<std::mutex> lock(mutex_);
  coalesced_.emplace();
}

DeviceGroup::WorkPtr DeviceGroup::endCoalescing() {
  DeviceBatch batch;
  c10::intrusive_ptr<DeviceWork> before;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    batch = std::exchange(coalesced_, std::nullopt).value_or(batch);
    before = last_ ? last_->lock() : before;
  }
  if (batch.is_empty()) {
    return {};
  }
  try {
    if (before) {
      before->await_launch(kNoTimeout);
    }
    return batch.launch(device_);
  } catch (...) {
    batch.end(std::current_exception());
    throw;
  }
}

} // namespace hvd
