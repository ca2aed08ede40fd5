#pragma once

#include <torch/csrc/utils/pybind.h>

namespace hvd {

/// Adds Options to torch_hvd._C; see torch_hvd/_C.pyi.
void bind_options(pybind11::module_& module);

} // namespace hvd
