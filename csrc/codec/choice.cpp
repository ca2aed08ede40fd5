#include "codec/choice.h"

#include "codec/codec.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <c10/core/SafePyObject.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <string>

namespace hvd {

namespace {

/// Among the thread's state that torch hands on with work, as autograd does to
/// its threads for a backward(). It takes Python objects; this one is none.
struct Override : c10::SafePyObject {
  explicit Override(std::optional<Compression> compression)
      : SafePyObject(nullptr, nullptr), compression(compression) {}
  const std::optional<Compression> compression;
};
using ThreadState = at::impl::ThreadLocalPythonObjects;
const std::string kKey = "torch_hvd.compression";

bool is_gradient_like(const Signature& signature) {
  const bool adds = signature.op == c10d::ReduceOp::SUM ||
      signature.op == c10d::ReduceOp::PREMUL_SUM ||
      signature.op == c10d::ReduceOp::AVG;
  const bool rounds = signature.dtype == at::kFloat ||
      signature.dtype == at::kHalf || signature.dtype == at::kBFloat16;
  return signature.verb == Verb::Allreduce && adds && rounds;
}

} // namespace

Codec make_codec(Compression compression, const CompressionSettings& settings) {
  const bool coarse = compression == Compression::Int4;
  Codec codec;
  codec.compression = compression;
  codec.error_feedback = settings.error_feedback.value_or(coarse);
  if (compression != Compression::None && !is_cast(compression)) {
    codec.block = settings.block.value_or(coarse ? 32 : 128);
  }
  return codec;
}

Codec codec_for(
    const Signature& signature,
    const CompressionSettings& settings,
    int size) {
  const auto compression =
      overriding_compression().value_or(settings.compression);
  if (size == 1 || compression == Compression::None ||
      !is_gradient_like(signature)) {
    return {};
  }
  const auto codec = make_codec(compression, settings);
  const int64_t bytes =
      signature.count * static_cast<int64_t>(c10::elementSize(signature.dtype));
  const bool pays = bytes >= settings.min_bytes &&
      encoded_bytes(codec, signature.count) < bytes;
  return pays ? codec : Codec{};
}

void override_compression(std::optional<Compression> compression) {
  ThreadState::set(kKey, std::make_shared<Override>(compression));
}

std::optional<Compression> overriding_compression() {
  if (!ThreadState::contains(kKey)) {
    return std::nullopt;
  }
  return static_cast<const Override&>(*ThreadState::get(kKey)).compression;
}

} // namespace hvd
