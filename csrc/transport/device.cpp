#include "transport/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>

#include <exception>

namespace hvd {

namespace {

template <typename Options>
Options options(std::chrono::milliseconds timeout) {
  Options result;
  result.timeout = timeout;
  result.asyncOp = true;
  return result;
}

} // namespace

DeviceTransport::DeviceTransport(
    c10::intrusive_ptr<c10d::Backend> backend,
    c10::DeviceType type)
    : backend_(std::move(backend)),
      type_(type),
      name_(backend_->getBackendName()) {}

c10::Stream DeviceTransport::stream(c10::Device device) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto known = streams_.find(device.index());
  if (known == streams_.end()) {
    const c10::impl::VirtualGuardImpl guard(type_);
    const auto stream = type_ == c10::DeviceType::CPU
        ? guard.getStream(device)
        : guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
    known = streams_.emplace(device.index(), stream).first;
  }
  return known->second;
}

std::vector<c10::Device> DeviceTransport::used() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<c10::Device> devices;
  for (const auto& [index, stream] : streams_) {
    devices.push_back(stream.device());
  }
  return devices;
}

DeviceTransport::WorkPtr DeviceTransport::all_reduce(
    at::Tensor tensor,
    const c10d::ReduceOp& op,
    std::chrono::milliseconds timeout) {
  auto opts = options<c10d::AllreduceOptions>(timeout);
  opts.reduceOp = op;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return backend_->allreduce(tensors, opts);
}

DeviceTransport::WorkPtr DeviceTransport::all_to_all(
    at::Tensor output,
    at::Tensor input,
    std::chrono::milliseconds timeout) {
  std::vector<int64_t> equal;
  return backend_->alltoall_base(
      output, input, equal, equal, options<c10d::AllToAllOptions>(timeout));
}

DeviceTransport::WorkPtr DeviceTransport::all_gather(
    at::Tensor output,
    at::Tensor input,
    std::chrono::milliseconds timeout) {
  return backend_->_allgather_base(
      output, input, options<c10d::AllgatherOptions>(timeout));
}

void DeviceTransport::abort() noexcept {
  if (over_.exchange(true)) {
    return;
  }
  try {
    backend_->abort();
  } catch (const std::exception& e) {
    LOG(WARNING) << "hvd: " << name_ << " could not be aborted: " << e.what();
  }
}

void DeviceTransport::shutdown() noexcept {
  std::call_once(shut_down_, [this] {
    if (over_) {
      return;
    }
    try {
      backend_->shutdown();
    } catch (const std::exception& e) {
      LOG(WARNING) << "hvd: " << name_ << " did not shut down: " << e.what();
    }
    over_ = true;
  });
}

} // namespace hvd
