#include "device_bindings.h"

#include "codec/codec.h"
#include "codec/device_kernels.h"
#include "codec_bindings.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

namespace py = pybind11;

namespace hvd {

namespace {

using Tensors = std::vector<at::Tensor>;

/// The kernels of a device, which is the current one meanwhile, and its current
/// stream.
class OnDevice {
 public:
  explicit OnDevice(c10::Device device)
      : kernels_(find(device)), guard_(device) {
    if (!device.is_cpu()) {
      const c10::impl::VirtualGuardImpl impl(device.type());
      stream_ = impl.getStreamNativeHandle(impl.getStream(device));
    }
  }

  const DeviceKernels* operator->() const {
    return kernels_;
  }
  DeviceKernels::Stream stream() const {
    return stream_;
  }

 private:
  static const DeviceKernels* find(c10::Device device) {
    const DeviceKernels* const kernels = device_kernels(device.type());
    TORCH_CHECK_VALUE(
        kernels != nullptr,
        "hvd: no kernels for tensors on ",
        device,
        "; for cuda they are in the module torch_hvd._cuda");
    return kernels;
  }

  const DeviceKernels* const kernels_;
  const c10::DeviceGuard guard_;
  DeviceKernels::Stream stream_ = nullptr;
};

void check_memory(
    const at::Tensor& tensor,
    const at::Tensor& beside,
    at::ScalarType dtype) {
  TORCH_CHECK_VALUE(
      tensor.is_contiguous() && tensor.device() == beside.device() &&
          tensor.scalar_type() == dtype,
      "hvd: ",
      tensor.toString(),
      " on ",
      tensor.device(),
      " is not contiguous, or not ",
      dtype,
      " on ",
      beside.device());
}

Number number_in(const at::Tensor& tensor) {
  const auto number = number_of(tensor.scalar_type());
  TORCH_CHECK_VALUE(
      number.has_value(),
      "hvd: dtype ",
      tensor.scalar_type(),
      "; allowed are float32, float16 and bfloat16");
  return *number;
}

int64_t round_up_to(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Tensors one behind the other in a message, each from a block of its own on.
class Packing {
 public:
  Packing(Codec codec, const Tensors& tensors, const at::Tensor& message)
      : codec_(codec), message_(message) {
    TORCH_CHECK_VALUE(!tensors.empty(), "hvd: no tensors");
    check_memory(message, tensors.front(), at::kByte);
    const auto dtype = tensors.front().scalar_type();
    for (const auto& tensor : tensors) {
      check_memory(tensor, message, dtype);
      begins_.push_back(count_);
      count_ += round_up_to(tensor.numel(), unit());
    }
    TORCH_CHECK_VALUE(
        message.numel() == encoded_bytes(codec, count_),
        "hvd: a message of ",
        count_,
        " values takes ",
        encoded_bytes(codec, count_),
        " bytes, not ",
        message.numel());
  }

  std::vector<DeviceKernels::Piece> pieces(
      const Tensors& tensors,
      const Tensors& residuals) const {
    auto* const values = message_.data_ptr<uint8_t>();
    std::vector<DeviceKernels::Piece> list;
    for (size_t i = 0; i < tensors.size(); ++i) {
      float* const residual =
          residuals.empty() ? nullptr : residuals.at(i).data_ptr<float>();
      list.push_back(
          {tensors[i].data_ptr(),
           values + value_bytes(begins_[i]),
           values + scales_begin() + scale_bytes(begins_[i]),
           residual,
           tensors[i].numel()});
    }
    return list;
  }

  int64_t scales_begin() const {
    return encoded_bytes(codec_, count_) - scale_bytes(count_);
  }

 private:
  int64_t unit() const {
    return is_cast(codec_.compression) ? 1 : codec_.block;
  }
  int64_t value_bytes(int64_t begin) const {
    return is_cast(codec_.compression)            ? 2 * begin
        : codec_.compression == Compression::Int4 ? begin / 2
                                                  : begin;
  }
  int64_t scale_bytes(int64_t begin) const {
    return is_cast(codec_.compression) ? 0 : begin / codec_.block * 2;
  }

  const Codec codec_;
  const at::Tensor message_;
  std::vector<int64_t> begins_;
  int64_t count_ = 0;
};

void encode_pieces(
    const Tensors& tensors,
    const at::Tensor& message,
    const std::string& compression,
    int32_t block,
    double factor,
    const Tensors& residuals) {
  const Codec codec = codec_of(compression, block);
  const Packing packing(codec, tensors, message);
  for (const auto& residual : residuals) {
    check_memory(residual, message, at::kFloat);
  }
  const OnDevice kernels(message.device());
  const auto pieces = packing.pieces(tensors, residuals);
  kernels->encode(
      codec,
      number_in(tensors.front()),
      pieces.data(),
      static_cast<int64_t>(pieces.size()),
      static_cast<float>(factor),
      kernels.stream());
}

void decode_pieces(
    const at::Tensor& message,
    const Tensors& tensors,
    const std::string& compression,
    int32_t block) {
  const Codec codec = codec_of(compression, block);
  const Packing packing(codec, tensors, message);
  const OnDevice kernels(message.device());
  const auto pieces = packing.pieces(tensors, {});
  kernels->decode(
      codec,
      number_in(tensors.front()),
      pieces.data(),
      static_cast<int64_t>(pieces.size()),
      kernels.stream());
}

void sum_messages(
    const Tensors& sources,
    const at::Tensor& out,
    int64_t count,
    const std::string& compression,
    int32_t block,
    const std::optional<at::Tensor>& residual) {
  const Codec codec = codec_of(compression, block);
  TORCH_CHECK_VALUE(
      !sources.empty() && count % (is_cast(codec.compression) ? 1 : block) == 0,
      "hvd: no messages, or a count of ",
      count,
      " that is not of whole blocks");
  const int64_t bytes = encoded_bytes(codec, count);
  const int64_t scales =
      is_cast(codec.compression) ? bytes : bytes - count / block * 2;
  std::vector<DeviceKernels::Source> list;
  for (const auto& source : sources) {
    check_memory(source, out, at::kByte);
    TORCH_CHECK_VALUE(
        source.numel() == bytes && out.numel() == bytes,
        "hvd: a message of ",
        count,
        " values takes ",
        bytes,
        " bytes");
    const auto* const values = source.const_data_ptr<uint8_t>();
    list.push_back({values, values + scales});
  }
  if (residual) {
    check_memory(*residual, out, at::kFloat);
  }
  const OnDevice kernels(out.device());
  kernels->decode_sum_encode(
      codec,
      list.data(),
      static_cast<int64_t>(list.size()),
      count,
      out.data_ptr<uint8_t>(),
      out.data_ptr<uint8_t>() + scales,
      residual ? residual->data_ptr<float>() : nullptr,
      kernels.stream());
}

void copy_pieces(const Tensors& to, const Tensors& from) {
  TORCH_CHECK_VALUE(
      !to.empty() && to.size() == from.size(),
      "hvd: no tensors, or ",
      to.size(),
      " to copy to and ",
      from.size(),
      " to copy");
  std::vector<DeviceKernels::Copy> list;
  for (size_t i = 0; i < to.size(); ++i) {
    check_memory(to[i], to[0], from[i].scalar_type());
    check_memory(from[i], to[0], from[i].scalar_type());
    TORCH_CHECK_VALUE(
        to[i].numel() == from[i].numel(),
        "hvd: ",
        from[i].numel(),
        " elements do not fit ",
        to[i].numel());
    list.push_back(
        {to[i].data_ptr(),
         from[i].const_data_ptr(),
         static_cast<int64_t>(to[i].nbytes())});
  }
  const OnDevice kernels(to[0].device());
  kernels->copy(
      list.data(), static_cast<int64_t>(list.size()), kernels.stream());
}

} // namespace

void bind_device_kernels(py::module_& module) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  module.def(
      "set_device_kernels",
      [](const std::string& device, const py::capsule& kernels) {
        set_device_kernels(
            c10::Device(device).type(),
            kernels.get_pointer<const DeviceKernels>());
      },
      py::arg("device"),
      py::arg("kernels"));
  module.def(
      "has_device_kernels",
      [](const std::string& device) {
        return device_kernels(c10::Device(device).type()) != nullptr;
      },
      py::arg("device"));
  module.def(
      "encode_pieces",
      &encode_pieces,
      py::arg("tensors"),
      py::arg("message"),
      py::arg("compression"),
      py::arg("block") = 128,
      py::arg("factor") = 1.0,
      py::arg("residuals") = Tensors(),
      NoGil());
  module.def(
      "decode_pieces",
      &decode_pieces,
      py::arg("message"),
      py::arg("tensors"),
      py::arg("compression"),
      py::arg("block") = 128,
      NoGil());
  module.def(
      "sum_messages",
      &sum_messages,
      py::arg("sources"),
      py::arg("out"),
      py::arg("count"),
      py::arg("compression"),
      py::arg("block") = 128,
      py::arg("residual") = py::none(),
      NoGil());
  module.def(
      "copy_pieces", &copy_pieces, py::arg("to"), py::arg("from_"), NoGil());
}

} // namespace hvd
