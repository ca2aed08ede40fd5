#include "device_work.h"

#include "work.h"

#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>

namespace hvd {

namespace {

// Between two looks at a device for which the host waits with a timeout.
constexpr std::chrono::microseconds kLook{100};

c10::intrusive_ptr<c10::ivalue::Future> make_future(c10::Device device) {
  std::vector<c10::Device> devices;
  if (has_streams(device)) {
    devices.push_back(device);
  }
  return c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::move(devices));
}

} // namespace

DeviceWork::DeviceWork(
    std::shared_ptr<Engine> engine,
    c10d::OpType type,
    const char* title,
    std::vector<at::Tensor> results)
    : Work(
          engine->transport().rank(),
          type,
          at::hasCallbacks() ? title : nullptr,
          if_profiled(results)),
      engine_(std::move(engine)),
      operation_(std::make_shared<Operation>()),
      results_(std::move(results)) {}

c10::intrusive_ptr<DeviceWork> DeviceWork::submit(
    const std::shared_ptr<Engine>& engine,
    c10d::OpType type,
    std::vector<at::Tensor> results,
    std::vector<Collective> collectives) {
  auto work = c10::make_intrusive<DeviceWork>(
      engine, type, title(collectives[0].signature.verb), std::move(results));
  auto& operation = *work->operation_;
  operation.collectives = std::move(collectives);
  operation.on_done = [work](std::exception_ptr error) {
    return work->conclude(std::move(error));
  };
  engine->submit(work->operation_, /*caller_waits=*/false);
  work->seq_ = operation.collectives[0].seq;
  return work;
}

c10::Device DeviceWork::device() const {
  return operation_->collectives[0].device_call->device;
}

std::function<void()> DeviceWork::conclude(std::exception_ptr error) {
  finish(std::move(error));
  std::lock_guard<std::mutex> lock(mutex_);
  if (!future_) {
    return {};
  }
  // Whoever asks from now on completes one of their own.
  return [self = c10::intrusive_ptr<DeviceWork>::reclaim_copy(this),
          future = future_] { self->complete(*future); };
}

bool DeviceWork::is_launched() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_;
}

void DeviceWork::complete(Future& future) const {
  if (exception_) {
    future.setError(exception_);
    return;
  }
  try {
    complete_launched(future);
  } catch (const std::exception&) {
    future.setError(std::current_exception());
  }
}

void DeviceWork::complete_launched(Future& future) const {
  // On a stream that waits for nothing else, or the future would.
  const c10::impl::VirtualGuardImpl guard(device().type());
  const auto stream = has_streams(device())
      ? guard.getStreamFromGlobalPool(device(), /*isHighPriority=*/true)
      : guard.getStream(device());
  const c10::StreamGuard on_stream(stream);
  for (const auto& collective : operation_->collectives) {
    collective.device_call->hold_current();
  }
  engine_->rethrow_failure();
  future.markCompleted(c10::IValue(results_));
}

c10::intrusive_ptr<DeviceWork::Future> DeviceWork::getFuture() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!completed_) {
      if (!future_) {
        future_ = make_future(device());
      }
      return future_;
    }
  }
  auto future = make_future(device());
  if (has_streams(device()) || isCompleted()) {
    complete(*future);
  } else {
    // To wait for such work is to block, and a caller from Python holds the
    // GIL, which the work may need.
    engine_->run_apart(
        "the future of " + operation_->collectives[0].signature.describe(),
        [self = c10::intrusive_ptr<DeviceWork>::reclaim_copy(this), future] {
          self->complete(*future);
        });
  }
  return future;
}

void DeviceWork::await_launch(std::chrono::milliseconds timeout) {
  if (!is_launched()) {
    wait_for(*engine_, *operation_, timeout, "the launch of ");
  }
  if (exception_) {
    std::rethrow_exception(exception_);
  }
}

bool DeviceWork::isCompleted() {
  const auto& collectives = operation_->collectives;
  return is_launched() &&
      (exception_ ||
       std::all_of(collectives.begin(), collectives.end(), [](const auto& c) {
         return c.device_call->work->isCompleted();
       }));
}

bool DeviceWork::isSuccess() const {
  return is_launched() && !exception_ && !engine_->failed();
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  const auto deadline = deadline_in(timeout);
  await_launch(timeout);
  while (timeout > kNoTimeout && !isCompleted()) {
    if (Clock::now() > deadline) {
      C10_THROW_ERROR(
          DistBackendError,
          "hvd: timed out waiting " + std::to_string(timeout.count()) +
              " ms for " + operation_->collectives[0].signature.describe() +
              ", number " + std::to_string(seq_) +
              " of its process group, to be done on " + device().str());
    }
    std::this_thread::sleep_for(kLook);
  }
  for (const auto& collective : operation_->collectives) {
    collective.device_call->hold_current();
  }
  engine_->rethrow_failure();
  return true;
}

void DeviceWork::synchronize() {
  wait(kNoTimeout);
}

std::vector<at::Tensor> DeviceWork::result() {
  return results_;
}

uint64_t DeviceWork::getSequencenumber() const {
  return seq_;
}

} // namespace hvd
