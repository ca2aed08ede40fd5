#include "codec_bindings.h"

#include "codec/choice.h"
#include "codec/codec.h"
#include "codec/kernels.h"
#include "common/neutral_thread.h"
#include "engine/error_feedback.h"

#include <c10/util/Exception.h>

#include <pybind11/stl.h>

#include <optional>

namespace py = pybind11;

namespace hvd {

Codec codec_of(const std::string& compression, int32_t block) {
  const auto found = compression_named(compression);
  TORCH_CHECK_VALUE(
      found.has_value(),
      "hvd: compression \"",
      compression,
      "\"; allowed is ",
      compression_names());
  return {*found, false, block};
}

namespace {

/// A tensor of any shape as the codecs take it; they write through it, so
/// nothing may be copied.
at::Tensor flat(const char* what, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(
      tensor.is_contiguous(),
      "hvd: ",
      what,
      " must be contiguous; its strides are ",
      tensor.strides());
  return tensor.view(-1);
}

at::Tensor flat(const char* what, const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? flat(what, *tensor) : at::Tensor();
}

Encoded message(
    Codec codec,
    int64_t count,
    const std::optional<at::Tensor>& out) {
  return out.has_value() ? Encoded(*out) : Encoded(codec, count);
}

at::Tensor encode_tensor(
    const at::Tensor& tensor,
    const std::string& compression,
    int32_t block,
    double factor,
    const std::optional<at::Tensor>& residual,
    const std::optional<at::Tensor>& out) {
  const Codec codec = codec_of(compression, block);
  Encoded encoded = message(codec, tensor.numel(), out);
  encode(
      codec,
      flat("tensor", tensor),
      static_cast<float>(factor),
      flat("residual", residual),
      encoded);
  return encoded.bytes_to_move();
}

at::Tensor decode_bytes(
    const at::Tensor& bytes,
    const std::string& compression,
    int32_t block,
    const at::Tensor& out) {
  at::Tensor numbers = flat("out", out);
  decode(codec_of(compression, block), Encoded(bytes), numbers);
  return out;
}

std::pair<at::Tensor, at::Tensor> decode_sum_encode_bytes(
    const std::vector<at::Tensor>& sources,
    const std::string& compression,
    int32_t block,
    const at::Tensor& result,
    const std::optional<at::Tensor>& residual,
    const std::optional<at::Tensor>& out) {
  const Codec codec = codec_of(compression, block);
  const std::vector<Encoded> messages(sources.begin(), sources.end());
  std::vector<const Encoded*> addresses;
  for (const auto& one : messages) {
    addresses.push_back(&one);
  }
  Encoded encoded = message(codec, result.numel(), out);
  at::Tensor numbers = flat("result", result);
  decode_sum_encode(
      codec, addresses, flat("residual", residual), encoded, numbers);
  return {encoded.bytes_to_move(), result};
}

std::pair<int32_t, bool> codec_parameters(
    const std::string& compression,
    std::optional<int32_t> block,
    std::optional<bool> error_feedback) {
  CompressionSettings settings;
  settings.block = block;
  settings.error_feedback = error_feedback;
  const auto codec = make_codec(codec_of(compression, 1).compression, settings);
  return {codec.block, codec.error_feedback};
}

std::shared_ptr<Residual> begin_feedback(
    ErrorFeedback& feedback,
    const at::Tensor& tensor,
    const std::string& compression,
    int32_t block) {
  Collective collective;
  auto& signature = collective.signature;
  signature.verb = Verb::Allreduce;
  signature.op = c10d::ReduceOp::AVG;
  signature.dtype = tensor.scalar_type();
  signature.count = tensor.numel();
  signature.codec = codec_of(compression, block);
  collective.inputs = {tensor};
  feedback.enlist(collective);
  feedback.begin(collective);
  return collective.residual;
}

void end_feedback(
    ErrorFeedback& feedback,
    const std::shared_ptr<Residual>& residual,
    const at::Tensor& sum) {
  residual->finite = all_finite(sum);
  Collective collective;
  collective.residual = residual;
  collective.step = residual->step;
  feedback.end(collective);
}

} // namespace

void bind_codecs(py::module_& module) {
  using NoGil = py::call_guard<py::gil_scoped_release, NeutralThread>;
  py::class_<Residual, std::shared_ptr<Residual>>(module, "Residual")
      .def_readwrite("contribution", &Residual::contribution)
      .def_readwrite("shard", &Residual::shard);
  py::class_<ErrorFeedback>(module, "ErrorFeedback")
      .def(py::init<>())
      .def(
          "begin",
          &begin_feedback,
          py::arg("tensor"),
          py::arg("compression"),
          py::arg("block"))
      .def("end", &end_feedback, py::arg("residual"), py::arg("sum"), NoGil());
  module.def(
      "codec_parameters",
      &codec_parameters,
      py::arg("compression"),
      py::arg("block").none(true),
      py::arg("error_feedback").none(true));
  module.def(
      "encode",
      &encode_tensor,
      py::arg("tensor"),
      py::arg("compression"),
      py::arg("block") = 128,
      py::arg("factor") = 1.0,
      py::arg("residual") = py::none(),
      py::arg("out") = py::none(),
      NoGil());
  module.def(
      "decode",
      &decode_bytes,
      py::arg("bytes"),
      py::arg("compression"),
      py::arg("block") = 128,
      py::kw_only(),
      py::arg("out"),
      NoGil());
  module.def(
      "decode_sum_encode",
      &decode_sum_encode_bytes,
      py::arg("sources"),
      py::arg("compression"),
      py::arg("block") = 128,
      py::kw_only(),
      py::arg("result"),
      py::arg("residual") = py::none(),
      py::arg("out") = py::none(),
      NoGil());
  module.def(
      "encoded_bytes",
      [](int64_t count, const std::string& compression, int32_t block) {
        return encoded_bytes(codec_of(compression, block), count);
      },
      py::arg("count"),
      py::arg("compression"),
      py::arg("block") = 128);
  module.def("simd", [] { return kernels().name; });
  module.def("simd_names", &simd_names);
  module.def("use_simd", &use_simd, py::arg("name"));
}

} // namespace hvd
