#include "operands.h"

#include "checks.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

namespace hvd {

namespace {

/// On the host, where a device copies to and from at full speed.
at::Tensor stand_in_for(const at::Tensor& tensor) {
  auto options = tensor.options().device(at::kCPU);
  if (has_streams(tensor.device())) {
    options = options.pinned_memory(true);
  }
  return at::empty(tensor.sizes(), options);
}

bool can_stay(const Collective& collective, const at::Tensor& tensor) {
  const bool in_reach = tensor.is_cpu() ||
      (collective.stays_on_device &&
       collective.on_device->device() == tensor.device());
  return in_reach && is_plain(tensor);
}

/// Memory of a tensor; an empty one meets nothing.
struct Span {
  uintptr_t begin;
  uintptr_t end;

  bool meets(const Span& other) const {
    return begin < other.end && other.begin < end;
  }
};

Span span_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return {std::numeric_limits<uintptr_t>::max(), 0};
  }
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return {begin, begin + tensor.nbytes()};
}

} // namespace

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor detached(const at::Tensor& tensor) {
  return at::Tensor(tensor.tensor_data());
}

at::Tensor source(Collective& collective, const at::Tensor& tensor) {
  if (can_stay(collective, tensor)) {
    return detached(tensor);
  }
  auto stand_in = stand_in_for(tensor);
  collective.copy_in.push_back({stand_in, detached(tensor), {}});
  return stand_in;
}

at::Tensor target(Collective& collective, const at::Tensor& tensor) {
  if (can_stay(collective, tensor)) {
    return detached(tensor);
  }
  check_writable(name(collective.signature.verb), tensor);
  auto stand_in = stand_in_for(tensor);
  collective.copy_back.emplace_back(detached(tensor), stand_in);
  return stand_in;
}

at::Tensor in_place(Collective& collective, const at::Tensor& tensor) {
  auto stand_in = source(collective, tensor);
  if (!can_stay(collective, tensor)) {
    check_writable(name(collective.signature.verb), tensor);
    collective.copy_back.emplace_back(detached(tensor), stand_in);
  }
  return stand_in;
}

at::Tensor premultiplied(
    Collective& collective,
    const at::Tensor& tensor,
    const c10d::ReduceOp& op) {
  if (op != c10d::ReduceOp::PREMUL_SUM) {
    return tensor;
  }
  const auto* supplement =
      dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(supplement != nullptr, "hvd: ReduceOp.PREMUL_SUM has no factor");
  const auto& factor = supplement->tensor_factor; // of one element
  auto product = stand_in_for(tensor);
  collective.copy_in.push_back(
      {product,
       tensor,
       factor.defined()
           ? factor.reshape({})
           : at::native::wrapped_scalar_tensor(supplement->double_factor)});
  return product;
}

void keep_apart(Collective& collective, int rank) {
  std::vector<Span> inputs;
  std::ranges::transform(
      collective.inputs, std::back_inserter(inputs), span_of);
  if (inputs.empty()) {
    return;
  }
  // Of n ranks there may be n of each; as a rule none are near each other.
  const Span all{
      std::ranges::min(inputs, {}, &Span::begin).begin,
      std::ranges::max(inputs, {}, &Span::end).end};
  const auto is_own = [rank](const auto& list, size_t place) {
    return list.size() == 1 || place == static_cast<size_t>(rank);
  };
  for (size_t to = 0; to < collective.outputs.size(); ++to) {
    auto& output = collective.outputs[to];
    const auto span = span_of(output);
    bool meets = false;
    for (size_t from = 0; span.meets(all) && from < inputs.size(); ++from) {
      const bool is_in_place = is_own(collective.outputs, to) &&
          is_own(inputs, from) && inputs[from].begin == span.begin;
      meets |= !is_in_place && inputs[from].meets(span);
    }
    if (meets) {
      auto stand_in = stand_in_for(output);
      collective.copy_back.emplace_back(output, stand_in);
      output = std::move(stand_in);
    }
  }
}

} // namespace hvd
