#pragma once

#include <torch/csrc/utils/pybind.h>

namespace hvd {

/// Adds the codecs to torch_hvd._C, for communication hooks and tests; see
/// torch_hvd/_C.pyi.
void bind_codecs(pybind11::module_& module);

} // namespace hvd
