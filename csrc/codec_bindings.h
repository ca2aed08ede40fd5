#pragma once

#include <torch/csrc/utils/pybind.h>

#include "common/compression.h"

#include <cstdint>
#include <string>

namespace hvd {

/// By the compression's name. Throws a ValueError for one that is not.
Codec codec_of(const std::string& compression, int32_t block);

/// Adds the codecs to torch_hvd._C, for communication hooks and tests; see
/// torch_hvd/_C.pyi.
void bind_codecs(pybind11::module_& module);

} // namespace hvd
