#include "arguments.h"

#include "checks.h"
#include "collectives/shards.h"
#include "operands.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace hvd {

namespace {

/// FNV-1a, Fowler, Noll, Vo.
uint64_t hash_of(const std::vector<int64_t>& counts) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const int64_t count : counts) {
    hash = (hash ^ static_cast<uint64_t>(count)) * 0x100000001b3;
  }
  return hash;
}

int64_t most_elements(const std::vector<at::Tensor>& tensors) {
  int64_t most = 0;
  for (const auto& tensor : tensors) {
    most = std::max(most, tensor.numel());
  }
  return most;
}

int64_t all_elements(const std::vector<at::Tensor>& tensors) {
  int64_t all = 0;
  for (const auto& tensor : tensors) {
    all += tensor.numel();
  }
  return all;
}

uint64_t hash_counts(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> counts;
  for (const auto& tensor : tensors) {
    counts.push_back(tensor.numel());
  }
  return hash_of(counts);
}

/// Of a sparse tensor.
uint64_t hash_shape(const at::Tensor& tensor) {
  auto shape = tensor.sizes().vec();
  shape.push_back(tensor.sparse_dim());
  return hash_of(shape);
}

/// Equal pieces of a contiguous tensor along its flat elements.
std::vector<at::Tensor> pieces(const at::Tensor& tensor, int size) {
  return shards(flat(tensor), size);
}

std::vector<at::Tensor> split(
    const char* what,
    const at::Tensor& tensor,
    const std::vector<int64_t>& splits,
    int size) {
  TORCH_CHECK(
      tensor.dim() > 0,
      "hvd: all_to_all: ",
      what,
      " is a scalar; it needs a first dimension to cut");
  const int64_t rows = tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK(
        rows % size == 0,
        "hvd: all_to_all: the first dimension of ",
        what,
        ", ",
        rows,
        ", is not divisible by the ",
        size,
        " ranks of the group; give split sizes");
    return pieces(tensor, size);
  }
  check_count(Verb::Alltoall, "split sizes", splits.size(), size);
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  TORCH_CHECK(
      sum == rows &&
          std::all_of(
              splits.begin(), splits.end(), [](auto s) { return s >= 0; }),
      "hvd: all_to_all: split sizes ",
      splits,
      " of ",
      what,
      " must not be negative and must add up to its first dimension, ",
      rows);
  std::vector<at::Tensor> result;
  int64_t begin = 0;
  for (const int64_t count : splits) {
    result.push_back(flat(tensor.narrow(0, begin, count)));
    begin += count;
  }
  return result;
}

} // namespace

Collective Arguments::make(Verb verb, const at::Tensor& like, int64_t count)
    const {
  check_device(name(verb), like);
  Collective collective;
  collective.signature.verb = verb;
  collective.signature.dtype = like.scalar_type();
  collective.signature.count = count;
  if (has_streams(like.device())) {
    collective.on_device = std::make_shared<StreamMark>(like.device());
    collective.stays_on_device =
        engine_.takes_in_place(collective, like.device().type());
  }
  collective.timeout = timeout_;
  collective.divisor = size_;
  return collective;
}

void Arguments::set_root(Collective& collective, int64_t root) const {
  TORCH_CHECK(
      root >= 0 && root < size_,
      "hvd: ",
      name(collective.signature.verb),
      ": root ",
      root,
      " is not a rank of the group; ranks are 0 to ",
      size_ - 1);
  collective.signature.root = static_cast<int32_t>(root);
}

void Arguments::check_on_root(
    Verb verb,
    const char* what,
    size_t count,
    int64_t root) const {
  if (rank_ == root) {
    check_count(verb, what, count, size_);
    return;
  }
  TORCH_CHECK(
      count == 0,
      "hvd: ",
      name(verb),
      ": ",
      count,
      " ",
      what,
      " on rank ",
      rank_,
      "; only the root, rank ",
      root,
      ", has any");
}

Collective Arguments::allreduce(
    const at::Tensor& tensor,
    const c10d::ReduceOp& op) const {
  const bool sparse = tensor.is_sparse();
  auto collective = sparse ? make(Verb::SparseAllreduce, tensor)
                           : make(Verb::Allreduce, tensor, tensor.numel());
  auto& signature = collective.signature;
  check_op(signature.verb, signature.dtype, op);
  signature.op = op;
  if (sparse) {
    TORCH_CHECK(
        op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG,
        "hvd: all_reduce of sparse tensors with ReduceOp.",
        name(ReduceOp(op)),
        "; it takes SUM and AVG");
    signature.counts_hash = hash_shape(tensor);
    collective.inputs = {tensor};
    collective.outputs = {tensor};
    return collective;
  }
  check_dense(name(signature.verb), tensor);
  const auto out = in_place(collective, tensor);
  collective.inputs = {premultiplied(collective, out, op)};
  collective.outputs = {out};
  return collective;
}

Collective Arguments::reduce(
    const at::Tensor& tensor,
    const c10d::ReduceOp& op,
    int64_t root) const {
  auto collective = make(Verb::Reduce, tensor, tensor.numel());
  check_dense(name(Verb::Reduce), tensor);
  check_op(Verb::Reduce, tensor.scalar_type(), op);
  set_root(collective, root);
  collective.signature.op = op;
  const auto in =
      rank_ == root ? in_place(collective, tensor) : source(collective, tensor);
  collective.inputs = {premultiplied(collective, in, op)};
  if (rank_ == root) {
    collective.outputs = {in};
  }
  return collective;
}

Collective Arguments::broadcast(const at::Tensor& tensor, int64_t root) const {
  auto collective = make(Verb::Broadcast, tensor, tensor.numel());
  check_dense(name(Verb::Broadcast), tensor);
  set_root(collective, root);
  if (rank_ == root) {
    collective.inputs = {source(collective, tensor)};
  } else {
    collective.outputs = {target(collective, tensor)};
  }
  return collective;
}

Collective Arguments::allgather(
    const std::vector<at::Tensor>& outputs,
    const at::Tensor& input) const {
  auto collective = make(Verb::Allgather, input, most_elements(outputs));
  check_dense(name(Verb::Allgather), input);
  check_count(Verb::Allgather, "output tensors", outputs.size(), size_);
  for (const auto& output : outputs) {
    check_dtype(Verb::Allgather, output, input);
    collective.outputs.push_back(target(collective, output));
  }
  check_numel(
      Verb::Allgather,
      "the output for this rank's own tensor",
      outputs[rank_],
      input.numel());
  collective.signature.counts_hash = hash_counts(outputs);
  collective.inputs = {source(collective, input)};
  keep_apart(collective, rank_);
  return collective;
}

Collective Arguments::allgather_into(
    const at::Tensor& output,
    const at::Tensor& input) const {
  auto collective = make(Verb::Allgather, input, input.numel());
  check_dense(name(Verb::Allgather), input);
  check_dtype(Verb::Allgather, output, input);
  check_numel(Verb::Allgather, "the output", output, input.numel() * size_);
  collective.outputs = pieces(target(collective, output), size_);
  collective.signature.counts_hash = hash_counts(collective.outputs);
  collective.inputs = {source(collective, input)};
  keep_apart(collective, rank_);
  return collective;
}

Collective Arguments::gather(
    const std::vector<at::Tensor>& outputs,
    const at::Tensor& input,
    int64_t root) const {
  auto collective = make(Verb::Gather, input, input.numel());
  check_dense(name(Verb::Gather), input);
  set_root(collective, root);
  check_on_root(Verb::Gather, "output tensors", outputs.size(), root);
  for (const auto& output : outputs) {
    check_dtype(Verb::Gather, output, input);
    check_numel(Verb::Gather, "an output", output, input.numel());
    collective.outputs.push_back(target(collective, output));
  }
  collective.inputs = {source(collective, input)};
  keep_apart(collective, rank_);
  return collective;
}

Collective Arguments::gather_into(
    const at::Tensor& output,
    const at::Tensor& input,
    int64_t root) const {
  auto collective = make(Verb::Gather, input, input.numel());
  check_dense(name(Verb::Gather), input);
  set_root(collective, root);
  if (rank_ == root) {
    check_dtype(Verb::Gather, output, input);
    check_numel(Verb::Gather, "the output", output, input.numel() * size_);
    collective.outputs = pieces(target(collective, output), size_);
  }
  collective.inputs = {source(collective, input)};
  keep_apart(collective, rank_);
  return collective;
}

Collective Arguments::scatter(
    const at::Tensor& output,
    const std::vector<at::Tensor>& inputs,
    int64_t root) const {
  auto collective = make(Verb::Scatter, output, output.numel() * size_);
  check_dense(name(Verb::Scatter), output);
  set_root(collective, root);
  check_on_root(Verb::Scatter, "input tensors", inputs.size(), root);
  for (const auto& input : inputs) {
    check_dtype(Verb::Scatter, input, output);
    check_numel(Verb::Scatter, "an input", input, output.numel());
    collective.inputs.push_back(source(collective, input));
  }
  collective.outputs = {target(collective, output)};
  keep_apart(collective, rank_);
  return collective;
}

Collective Arguments::reduce_scatter(
    const at::Tensor& output,
    const std::vector<at::Tensor>& inputs,
    const c10d::ReduceOp& op) const {
  return reduce_scatter(
      make(Verb::ReduceScatter, output, all_elements(inputs)),
      output,
      inputs,
      op);
}

Collective Arguments::reduce_scatter_from(
    const at::Tensor& output,
    const at::Tensor& input,
    const c10d::ReduceOp& op) const {
  check_dense(name(Verb::ReduceScatter), input);
  check_numel(Verb::ReduceScatter, "the input", input, output.numel() * size_);
  auto collective = make(Verb::ReduceScatter, output, input.numel());
  const auto inputs = pieces(source(collective, input), size_);
  return reduce_scatter(std::move(collective), output, inputs, op);
}

Collective Arguments::reduce_scatter(
    Collective collective,
    const at::Tensor& output,
    const std::vector<at::Tensor>& inputs,
    const c10d::ReduceOp& op) const {
  auto& signature = collective.signature;
  check_dense(name(Verb::ReduceScatter), output);
  check_count(Verb::ReduceScatter, "input tensors", inputs.size(), size_);
  check_op(Verb::ReduceScatter, output.scalar_type(), op);
  for (const auto& input : inputs) {
    check_dtype(Verb::ReduceScatter, input, output);
    collective.inputs.push_back(
        premultiplied(collective, source(collective, input), op));
  }
  check_numel(Verb::ReduceScatter, "the output", output, inputs[rank_].numel());
  signature.op = op;
  signature.counts_hash = hash_counts(inputs);
  collective.outputs = {target(collective, output)};
  keep_apart(collective, rank_);
  return collective;
}

Collective Arguments::alltoall(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& inputs) const {
  check_count(Verb::Alltoall, "input tensors", inputs.size(), size_);
  check_count(Verb::Alltoall, "output tensors", outputs.size(), size_);
  auto collective = make(Verb::Alltoall, inputs[0]);
  for (int peer = 0; peer < size_; ++peer) {
    check_dtype(Verb::Alltoall, inputs[peer], inputs[0]);
    check_dtype(Verb::Alltoall, outputs[peer], inputs[0]);
    collective.inputs.push_back(source(collective, inputs[peer]));
    collective.outputs.push_back(target(collective, outputs[peer]));
  }
  check_numel(
      Verb::Alltoall,
      "this rank's output from itself",
      outputs[rank_],
      inputs[rank_].numel());
  keep_apart(collective, rank_);
  return collective;
}

Collective Arguments::alltoall_single(
    const at::Tensor& output,
    const at::Tensor& input,
    const std::vector<int64_t>& output_splits,
    const std::vector<int64_t>& input_splits) const {
  auto collective = make(Verb::Alltoall, input);
  check_dense(name(Verb::Alltoall), input);
  check_dtype(Verb::Alltoall, output, input);
  collective.inputs =
      split("the input", source(collective, input), input_splits, size_);
  collective.outputs =
      split("the output", target(collective, output), output_splits, size_);
  check_numel(
      Verb::Alltoall,
      "this rank's output from itself",
      collective.outputs[rank_],
      collective.inputs[rank_].numel());
  keep_apart(collective, rank_);
  return collective;
}

Collective Arguments::barrier() const {
  Collective collective;
  collective.timeout = timeout_;
  return collective;
}

bool Arguments::in_reach_of_messages(const at::Tensor& tensor) const {
  return engine_.transport().takes_memory_of(tensor.device().type()) &&
      is_plain(tensor);
}

at::Tensor Arguments::to_send(const at::Tensor& tensor) const {
  check_dense("send", tensor);
  if (in_reach_of_messages(tensor)) {
    StreamMark(tensor.device()).wait();
    return detached(tensor);
  }
  return detached(tensor).cpu().contiguous().resolve_conj().resolve_neg();
}

at::Tensor Arguments::to_receive(const at::Tensor& tensor) const {
  check_dense("recv", tensor);
  // A device may not be done with the memory, and who receives does not wait.
  if (in_reach_of_messages(tensor) && stream_is_idle(tensor.device())) {
    return detached(tensor);
  }
  check_writable("recv", tensor);
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
}

std::vector<Collective> only(Collective collective) {
  std::vector<Collective> list;
  list.push_back(std::move(collective));
  return list;
}

std::vector<at::Tensor> flattened(
    const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<at::Tensor> result;
  for (const auto& list : lists) {
    result.insert(result.end(), list.begin(), list.end());
  }
  return result;
}

} // namespace hvd
