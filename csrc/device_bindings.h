#pragma once

#include <torch/csrc/utils/pybind.h>

namespace hvd {

/// Adds to torch_hvd._C the door for other modules' kernels, and these on
/// tensors, for tests and benchmarks; see torch_hvd/_C.pyi.
void bind_device_kernels(pybind11::module_& module);

} // namespace hvd
