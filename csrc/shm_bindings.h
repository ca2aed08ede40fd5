#pragma once

#include <torch/csrc/utils/pybind.h>

namespace hvd {

/// What torch_hvd/_shm.py needs to connect ranks by shared memory.
void bind_shm(pybind11::module_& module);

} // namespace hvd
