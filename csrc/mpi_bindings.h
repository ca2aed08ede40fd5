#pragma once

#include <torch/csrc/utils/pybind.h>

namespace hvd {

/// What torch_hvd/_mpi.py needs to find MPI, to start it and to connect ranks.
void bind_mpi(pybind11::module_& module);

} // namespace hvd
