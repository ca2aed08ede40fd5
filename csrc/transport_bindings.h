#pragma once

#include <torch/csrc/utils/pybind.h>

namespace hvd {

/// Adds Transport, and those that have no bindings of their own, to the module.
void bind_transports(pybind11::module_& module);

} // namespace hvd
