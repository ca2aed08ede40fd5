#pragma once

#include "codec/device.h"

#include <c10/core/DeviceType.h>

namespace hvd {

/// The kernels for tensors of that kind of device, null where there are none.
/// Those of the host are always there; they ignore the stream and are done when
/// they return.
const DeviceKernels* device_kernels(c10::DeviceType type);

/// Called by the module that brings such kernels; they stay.
void set_device_kernels(c10::DeviceType type, const DeviceKernels* kernels);

} // namespace hvd
