#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "common/stream_mark.h"

#include <functional>

namespace hvd {

/// What a Collective has more when its tensors are on a device whose backend of
/// c10d moves them: it is done when it has been put on a stream.
struct DeviceCall {
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Launch = std::function<WorkPtr(c10d::Backend&)>;

  explicit DeviceCall(c10::Device on, Launch launched_by = {})
      : device(on), ready(on), launch(std::move(launched_by)) {}

  const c10::Device device;
  const StreamMark ready; ///< when the caller has computed the tensors

  /// Calls the backend. Empty for an all_reduce that may travel with others or
  /// is compressed, whose tensors the Collective has.
  const Launch launch;

  /// What its caller waits for, once it has been launched.
  WorkPtr work;
};

} // namespace hvd
