#include "collectives/device_allreduce.h"

#include "codec/device_kernels.h"
#include "collectives/shards.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace hvd {

namespace {

constexpr int64_t kAlignment = 16; // bytes, of each tensor in a buffer

/// A buffer for all of them, and the part of each.
struct Packed {
  explicit Packed(const std::vector<at::Tensor>& tensors) {
    const auto element = static_cast<int64_t>(tensors[0].element_size());
    const int64_t unit = std::max(kAlignment / element, int64_t{1});
    std::vector<int64_t> begins;
    int64_t end = 0;
    int64_t used = 0;
    for (const auto& tensor : tensors) {
      begins.push_back(end);
      used += tensor.numel();
      end += (tensor.numel() + unit - 1) / unit * unit;
    }
    // Gaps are added up as well, and no check of the backend's must find there
    // what looks like a NaN.
    const auto options = tensors[0].options();
    buffer = used < end ? at::zeros({end}, options) : at::empty({end}, options);
    for (size_t i = 0; i < tensors.size(); ++i) {
      parts.push_back(buffer.narrow(0, begins[i], tensors[i].numel()));
    }
  }

  at::Tensor buffer;
  std::vector<at::Tensor> parts;
};

void copy_all(
    const std::vector<at::Tensor>& to,
    const std::vector<at::Tensor>& from) {
  const auto device = to[0].device();
  const auto* kernels = device_kernels(device.type());
  if (kernels == nullptr) {
    at::_foreach_copy_(to, from);
    return;
  }
  std::vector<DeviceKernels::Copy> copies;
  for (size_t i = 0; i < to.size(); ++i) {
    copies.push_back(
        {to[i].mutable_data_ptr(),
         from[i].const_data_ptr(),
         static_cast<int64_t>(to[i].nbytes())});
  }
  kernels->copy(
      copies.data(),
      static_cast<int64_t>(copies.size()),
      native_handle(current_stream(device)));
}

} // namespace

void launch_allreduces(
    const std::vector<const Collective*>& members,
    DeviceTransport& transport) {
  const Collective& first = *members[0];
  if (is_compressed(first)) {
    launch_compressed_allreduces(members, transport);
    return;
  }
  const auto reduce = [&](const at::Tensor& tensor) {
    transport.all_reduce(tensor, first.signature.op, first.timeout)->wait();
  };
  if (members.size() == 1) {
    reduce(first.outputs[0]);
    return;
  }
  std::vector<at::Tensor> tensors;
  for (const Collective* member : members) {
    tensors.push_back(flat(member->outputs[0]));
  }
  const Packed packed(tensors);
  copy_all(packed.parts, tensors);
  reduce(packed.buffer);
  copy_all(tensors, packed.parts);
}

} // namespace hvd
