#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "common/device_call.h"
#include "transport/device.h"

#include <exception>
#include <vector>

namespace hvd {

/// A call that has been put off to be launched together with others, and from
/// then on their work. Until then nobody can wait for it, and wait() returns.
class CoalescedWork final : public c10d::Work {
 public:
  void become(c10::intrusive_ptr<c10d::Work> all);
  /// They are not launched.
  void end(std::exception_ptr error);

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;

 private:
  c10::intrusive_ptr<c10d::Work> all() const;

  c10::intrusive_ptr<c10d::Work> all_; ///< null until then; guarded by mutex_
};

/// Calls that are to be one call of a device's backend, as NCCL's group calls.
///
/// Not thread-safe; the works that it hands out are.
class DeviceBatch {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  bool is_empty() const {
    return works_.empty();
  }

  /// `moved`: all tensors that the launch reads or writes.
  WorkPtr put_off(
      DeviceCall::Launch launch,
      const std::vector<at::Tensor>& moved);

  /// All at once, in order with what else the group does on the device. Not
  /// empty. Returns the work that all have become.
  WorkPtr launch(DeviceTransport& device) const;

  /// They are not launched.
  void end(const std::exception_ptr& error) const;

 private:
  WorkPtr call(c10d::Backend& backend) const;
  WorkPtr call_in_order(DeviceTransport& transport) const;

  std::vector<DeviceCall::Launch> launches_;
  std::vector<c10::intrusive_ptr<CoalescedWork>> works_;
  std::vector<at::Tensor> moved_;
};

} // namespace hvd
