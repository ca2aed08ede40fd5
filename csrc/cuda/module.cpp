// torch_hvd._cuda: hands its kernels to torch_hvd._C when it is imported. It
// uses nothing of torch but pybind11, and works without a GPU as far as that
// goes.

#include "codec/device.h"
#include "cuda/kernels.h"

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace {

constexpr hvd::DeviceKernels kKernels{
    hvd::cuda::encode,
    hvd::cuda::decode,
    hvd::cuda::decode_sum_encode,
    hvd::cuda::copy};

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m, py::mod_gil_not_used()) {
  m.doc() = "The codecs' CUDA kernels; see torch_hvd/_cuda.pyi.";
  const py::capsule kernels(&kKernels, "hvd::DeviceKernels");
  // Through _load, which refuses another torch than both were built for.
  py::module_::import("torch_hvd._load")
      .attr("_C")
      .attr("set_device_kernels")("cuda", kernels);
}
