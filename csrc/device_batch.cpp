#include "device_batch.h"

#include <c10/core/StreamGuard.h>

#include <mutex>
#include <shared_mutex>
#include <utility>

namespace hvd {

void CoalescedWork::become(c10::intrusive_ptr<c10d::Work> all) {
  std::lock_guard<std::mutex> lock(mutex_);
  all_ = std::move(all);
}

void CoalescedWork::end(std::exception_ptr error) {
  finish(std::move(error));
}

c10::intrusive_ptr<c10d::Work> CoalescedWork::all() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return all_;
}

bool CoalescedWork::isCompleted() {
  const auto work = all();
  return work ? work->isCompleted() : Work::isCompleted();
}

bool CoalescedWork::isSuccess() const {
  const auto work = all();
  return work && work->isSuccess();
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  if (const auto work = all()) {
    return work->wait(timeout);
  }
  if (const auto error = exception()) {
    std::rethrow_exception(error);
  }
  return true;
}

void CoalescedWork::synchronize() {
  if (const auto work = all()) {
    work->synchronize();
  }
}

DeviceBatch::WorkPtr DeviceBatch::put_off(
    DeviceCall::Launch launch,
    const std::vector<at::Tensor>& moved) {
  launches_.push_back(std::move(launch));
  moved_.insert(moved_.end(), moved.begin(), moved.end());
  return works_.emplace_back(c10::make_intrusive<CoalescedWork>());
}

DeviceBatch::WorkPtr DeviceBatch::call(c10d::Backend& backend) const {
  backend.startCoalescing();
  for (const auto& launch : launches_) {
    launch(backend);
  }
  return backend.endCoalescing();
}

DeviceBatch::WorkPtr DeviceBatch::call_in_order(
    DeviceTransport& transport) const {
  const auto device = moved_[0].device();
  DeviceCall all(
      device, [this](auto& backend) { return call(backend); }, moved_);
  all.mark_ready();
  // What the group has yet to unpack there may be what is read next, and what
  // it packs later may be what is written.
  const c10::StreamGuard guard(transport.stream(device));
  all.ready->hold_current();
  all.pass_on(transport.backend());
  if (all.work) {
    all.hold_current();
  }
  return all.work;
}

DeviceBatch::WorkPtr DeviceBatch::launch(DeviceTransport& transport) const {
  const std::lock_guard<std::shared_mutex> calling(transport.calling());
  // In a graph are messages alone, for nothing else of the group can be.
  const auto all = is_captured(moved_[0].device()) ? call(transport.backend())
                                                   : call_in_order(transport);
  for (const auto& work : works_) {
    work->become(all);
  }
  return all;
}

void DeviceBatch::end(const std::exception_ptr& error) const {
  for (const auto& work : works_) {
    work->end(error);
  }
}

} // namespace hvd
