#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "common/stream_mark.h"

#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace hvd {

/// What a Collective has more when its tensors are on a device whose backend of
/// c10d moves them: it is done when it has been put on a stream.
struct DeviceCall {
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Launch = std::function<WorkPtr(c10d::Backend&)>;

  explicit DeviceCall(
      c10::Device on,
      Launch launched_by = {},
      const std::vector<at::Tensor>& moved = {})
      : device(on),
        launch(std::move(launched_by)),
        passed_on(launch != nullptr) {
    if (!passed_on) {
      mark_ready();
    }
    for (const auto& tensor : moved) {
      if (tensor.has_storage()) {
        storages_.push_back(tensor.storage().getWeakStorageImpl());
      }
    }
  }

  /// What this thread has put on its current stream is what the call follows,
  /// wherever and by whomever it is launched.
  void mark_ready() {
    if (!ready) {
      ready.emplace(device);
    }
  }

  /// Has the backend launch it, behind this thread's current stream.
  void pass_on(c10d::Backend& backend) {
    work = std::exchange(launch, nullptr)(backend);
  }

  /// What this thread puts on its current stream from now on comes after what
  /// was launched.
  void hold_current() const {
    // The backend keeps tensors until the first wait for its work, which need
    // not be on the stream that their owner frees them by.
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages;
    for (const auto& storage : storages_) {
      storages.push_back(storage.lock());
    }
    work->wait();
    for (const auto& storage : storages) {
      if (storage) {
        keep_until_done(*storage, current_stream(device));
      }
    }
  }

  const c10::Device device;

  /// When the caller has computed the tensors. None of a call that its caller's
  /// thread passes on at once: an event, and a stream more that waits for it,
  /// are a tenth of what NCCL's call takes.
  std::optional<StreamMark> ready;

  /// Calls the backend, once. Empty for an all_reduce that may travel with
  /// others or is compressed, whose tensors the Collective has.
  Launch launch;
  const bool passed_on; ///< to the backend, as it was called

  /// Of what has been launched.
  WorkPtr work;

 private:
  /// All that the launch has the device read or write.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

} // namespace hvd
