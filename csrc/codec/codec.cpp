#include "codec/codec.h"

#include "codec/message.h"
#include "codec/pieces.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <type_traits>

namespace hvd {

namespace {

static_assert(!std::is_convertible_v<Encoded, at::Tensor>);
static_assert(!std::is_convertible_v<Encoded, const at::Tensor&>);
static_assert(!std::is_convertible_v<Encoded, at::TensorBase>);
static_assert(!std::is_convertible_v<Encoded, void*>);
static_assert(!std::is_convertible_v<Encoded, const void*>);
static_assert(!std::is_convertible_v<Encoded, const uint8_t*>);
static_assert(!std::is_convertible_v<Encoded, bool>);
static_assert(!std::is_convertible_v<at::Tensor, Encoded>);

void check(Codec codec) {
  TORCH_CHECK_VALUE(
      codec.compression > Compression::None &&
          codec.compression <= Compression::Int4,
      "hvd: there is nothing to encode for compression ",
      name(codec.compression),
      "; allowed is one of ",
      compression_names(),
      " but none");
  const bool is_power = (codec.block & (codec.block - 1)) == 0;
  TORCH_CHECK_VALUE(
      is_cast(codec.compression) ||
          (is_power && codec.block >= 32 && codec.block <= kPiece),
      "hvd: a block of ",
      codec.block,
      " values; allowed is a power of two from 32 to ",
      kPiece);
}

void check_flat(const char* what, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(
      tensor.defined() && tensor.device().is_cpu() && tensor.dim() == 1 &&
          tensor.is_contiguous(),
      "hvd: ",
      what,
      " must be a flat contiguous tensor on cpu, not ",
      tensor.toString(),
      " of shape ",
      tensor.defined() ? tensor.sizes() : at::IntArrayRef());
}

/// Values before they are encoded, or after they are decoded.
void check_numbers(const char* what, const at::Tensor& tensor) {
  check_flat(what, tensor);
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK_VALUE(
      number_of(dtype).has_value(),
      "hvd: ",
      what,
      " has dtype ",
      dtype,
      "; allowed are float32, float16 and bfloat16");
}

void check_residual(const at::Tensor& residual, int64_t count) {
  if (!residual.defined()) {
    return;
  }
  check_flat("residual", residual);
  TORCH_CHECK_VALUE(
      residual.scalar_type() == at::kFloat && residual.numel() == count,
      "hvd: the residual of ",
      count,
      " values is as many float32, not ",
      residual.numel(),
      " of ",
      residual.scalar_type());
}

} // namespace

std::optional<Number> number_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return Number::Float32;
    case at::kHalf:
      return Number::Float16;
    case at::kBFloat16:
      return Number::BFloat16;
    default:
      return std::nullopt;
  }
}

Encoded::Encoded(at::Tensor bytes) : bytes_(std::move(bytes)) {
  check_flat("an encoded message", bytes_);
  TORCH_CHECK_VALUE(
      bytes_.scalar_type() == at::kByte,
      "hvd: an encoded message is uint8, not ",
      bytes_.scalar_type());
}

Encoded::Encoded(Codec codec, int64_t count)
    : Encoded(at::empty({encoded_bytes(codec, count)}, at::kByte)) {}

int64_t encoded_bytes(Codec codec, int64_t count) {
  check(codec);
  TORCH_CHECK_VALUE(
      count >= 0, "hvd: ", count, " values; allowed is 0 and more");
  return round_up(Message::value_bytes(codec, count), 2) +
      Message::scale_bytes(codec, count);
}

void encode(
    Codec codec,
    const at::Tensor& in,
    float factor,
    const at::Tensor& residual,
    Encoded& out) {
  check_numbers("a tensor to encode", in);
  check_residual(residual, in.numel());
  const Message message(codec, out, in.numel());
  message.clear_gap();
  const Pieces pieces(codec);
  const Number number = *number_of(in.scalar_type());
  float* const rest = residual.defined() ? residual.data_ptr<float>() : nullptr;

  if (number == Number::Float32 && factor == 1.0F && rest == nullptr) {
    pieces.encode(in.const_data_ptr<float>(), message, 0, in.numel());
    return;
  }
  for_pieces(in.numel(), [&](int64_t begin, int64_t n) {
    Piece piece;
    const float* values =
        pieces.load(number, in.const_data_ptr(), begin, n, piece);
    if (rest != nullptr || factor != 1.0F) {
      float* const added = rest != nullptr ? rest + begin : nullptr;
      pieces.multiply(values, factor, added, n, piece);
      values = piece;
    }
    pieces.encode(values, message, begin, n);
    if (rest != nullptr) {
      Piece decoded;
      pieces.decode(message, begin, n, decoded);
      pieces.keep_lost(values, decoded, n, rest + begin);
    }
  });
}

void decode(Codec codec, const Encoded& in, at::Tensor& out) {
  check_numbers("a tensor to decode into", out);
  const Message message(codec, in, out.numel());
  const Pieces pieces(codec);

  if (out.scalar_type() == at::kFloat) {
    pieces.decode_all(message, out);
    return;
  }
  for_pieces(out.numel(), [&](int64_t begin, int64_t n) {
    Piece piece;
    pieces.decode(message, begin, n, piece);
    pieces.store(
        *number_of(out.scalar_type()), piece, begin, n, out.data_ptr());
  });
}

bool all_finite(const at::Tensor& numbers) {
  check_numbers("a tensor to look through", numbers);
  return kernels().all_finite(
      numbers.const_data_ptr(),
      *number_of(numbers.scalar_type()),
      numbers.numel());
}

void decode_sum_encode(
    Codec codec,
    const std::vector<const Encoded*>& sources,
    const at::Tensor& residual,
    Encoded& out,
    at::Tensor& result) {
  const int64_t count = result.defined() ? result.numel() : 0;
  check_numbers("a tensor for the sum", result);
  check_residual(residual, count);
  TORCH_CHECK_VALUE(!sources.empty(), "hvd: a sum of no messages");
  std::vector<Message> messages;
  for (const Encoded* source : sources) {
    messages.emplace_back(codec, *source, count);
  }
  const Message to(codec, out, count);
  to.clear_gap();
  const Pieces pieces(codec);
  float* const rest = residual.defined() ? residual.data_ptr<float>() : nullptr;

  for_pieces(count, [&](int64_t begin, int64_t n) {
    Piece sum;
    for (const auto& message : messages) {
      pieces.decode(message, begin, n, sum, &message != messages.data());
    }
    if (rest != nullptr) {
      pieces.multiply(sum, 1.0F, rest + begin, n, sum);
    }
    pieces.encode(sum, to, begin, n);
    Piece piece;
    const bool direct = result.scalar_type() == at::kFloat;
    float* const decoded =
        direct ? result.data_ptr<float>() + begin : &piece[0];
    pieces.decode(to, begin, n, decoded);
    if (rest != nullptr) {
      pieces.keep_lost(sum, decoded, n, rest + begin);
    }
    if (!direct) {
      pieces.store(
          *number_of(result.scalar_type()),
          decoded,
          begin,
          n,
          result.data_ptr());
    }
  });
}

} // namespace hvd
