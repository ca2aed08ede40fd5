#include "codec/codec.h"

#include "codec/kernels.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
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

/// Values that go through the first-level cache at a time: a multiple of every
/// block.
constexpr int64_t kPiece = 1024;
/// Of which the casts can begin a piece.
constexpr int64_t kRow = 32;

using Piece = float[kPiece];

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

bool is_cast(Compression compression) {
  return compression == Compression::Fp16 || compression == Compression::Bf16;
}

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
      dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16,
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

/// Where the bytes of one message are, by the values it holds.
class Message {
 public:
  Message(Codec codec, const Encoded& encoded, int64_t count)
      : codec_(codec),
        count_(count),
        values_(static_cast<uint8_t*>(encoded.bytes_to_move().data_ptr())),
        scales_(values_ + round_up(value_bytes(codec, count), 2)) {
    const int64_t expected = encoded_bytes(codec, count);
    TORCH_CHECK_VALUE(
        encoded.bytes_to_move().numel() == expected,
        "hvd: ",
        count,
        " values as ",
        name(codec.compression),
        " take ",
        expected,
        " bytes, not ",
        encoded.bytes_to_move().numel());
  }

  /// The byte between values and scales, if there is one, travels too.
  void clear_gap() const {
    for (uint8_t* byte = values(count_); byte < scales_; ++byte) {
      *byte = 0;
    }
  }

  /// Of the value `begin`, the first of a block, and those behind it.
  uint8_t* values(int64_t begin) const {
    return values_ + value_bytes(codec_, begin);
  }
  uint8_t* scales(int64_t begin) const {
    return scales_ + scale_bytes(codec_, begin);
  }

  static int64_t value_bytes(Codec codec, int64_t count) {
    if (is_cast(codec.compression)) {
      return 2 * count;
    }
    return codec.compression == Compression::Int4 ? (count + 1) / 2 : count;
  }
  static int64_t scale_bytes(Codec codec, int64_t count) {
    return is_cast(codec.compression)
        ? 0
        : 2 * ((count + codec.block - 1) / codec.block);
  }

 private:
  const Codec codec_;
  const int64_t count_;
  uint8_t* const values_;
  uint8_t* const scales_;
};

/// Calls `on_piece(begin, n)` for all `count` values: n <= kPiece of them from
/// `begin` on, whole blocks but in the last piece.
template <typename OnPiece>
void for_pieces(int64_t count, OnPiece on_piece) {
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    on_piece(begin, std::min(kPiece, count - begin));
  }
}

/// The kernels, for any number of values from the first of a block on.
///
/// What is left behind the whole blocks continues as zeros in buffers of its
/// own, so that a partial block is encoded as a whole one.
class Pieces {
 public:
  explicit Pieces(Codec codec)
      : codec_(codec),
        unit_(is_cast(codec.compression) ? kRow : codec.block),
        kernels_(kernels()),
        format_(kernels_[codec.compression]) {}

  void encode(const float* in, const Message& to, int64_t begin, int64_t n)
      const {
    const int64_t whole = n / unit_ * unit_;
    if (whole > 0) {
      format_.encode(
          in, whole, codec_.block, to.values(begin), to.scales(begin));
    }
    if (whole < n) {
      encode_rest(in + whole, to, begin + whole, n - whole);
    }
  }

  /// Into `out`, or added to it.
  void decode(
      const Message& from,
      int64_t begin,
      int64_t n,
      float* out,
      bool add = false) const {
    const int64_t whole = n / unit_ * unit_;
    if (whole > 0) {
      (add ? format_.decode_add : format_.decode)(
          from.values(begin), from.scales(begin), whole, codec_.block, out);
    }
    if (whole < n) {
      decode_rest(from, begin + whole, n - whole, out + whole, add);
    }
  }

  /// residual = what `decoded` lacks of `values`
  void keep_lost(
      const float* values,
      const float* decoded,
      int64_t n,
      float* residual) const {
    kernels_.keep_lost(values, decoded, n, residual);
  }

  /// out = factor * in, plus the residual unless it is null
  void multiply(
      const float* in,
      float factor,
      const float* residual,
      int64_t n,
      float* out) const {
    kernels_.multiply(in, factor, residual, n, out);
  }

  /// Numbers of any dtype that encode() takes, as fp32 in `piece` or where they
  /// are.
  const float* load(
      const at::Tensor& from,
      int64_t begin,
      int64_t n,
      float* piece) const {
    if (from.scalar_type() == at::kFloat) {
      return from.const_data_ptr<float>() + begin;
    }
    const auto* in = static_cast<const uint8_t*>(from.const_data_ptr());
    uint8_t padded[2 * kPiece] = {};
    const uint8_t* whole = in + 2 * begin;
    if (n % kRow != 0) {
      std::memcpy(padded, whole, 2 * n);
      whole = padded;
    }
    cast_of(from).decode(whole, nullptr, round_up(n, kRow), 0, piece);
    return piece;
  }

  /// The other way.
  void store(const float* piece, int64_t begin, int64_t n, at::Tensor& to)
      const {
    auto* out = static_cast<uint8_t*>(to.data_ptr()) + 2 * begin;
    const int64_t whole = n / kRow * kRow;
    cast_of(to).encode(piece, whole, 0, out, nullptr);
    Piece rest = {};
    std::copy_n(piece + whole, n - whole, rest);
    uint8_t bytes[2 * kRow];
    cast_of(to).encode(rest, kRow, 0, bytes, nullptr);
    std::memcpy(out + 2 * whole, bytes, 2 * (n - whole));
  }

 private:
  void encode_rest(const float* in, const Message& to, int64_t begin, int64_t n)
      const {
    Piece block = {};
    std::copy_n(in, n, block);
    uint8_t values[2 * kPiece];
    uint8_t scale[2];
    format_.encode(block, unit_, codec_.block, values, scale);
    std::memcpy(to.values(begin), values, Message::value_bytes(codec_, n));
    std::memcpy(to.scales(begin), scale, Message::scale_bytes(codec_, n));
  }

  void decode_rest(
      const Message& from,
      int64_t begin,
      int64_t n,
      float* out,
      bool add) const {
    uint8_t values[2 * kPiece] = {};
    std::memcpy(values, from.values(begin), Message::value_bytes(codec_, n));
    Piece block = {};
    std::copy_n(out, add ? n : 0, block);
    (add ? format_.decode_add : format_.decode)(
        values, from.scales(begin), unit_, codec_.block, block);
    std::copy_n(block, n, out);
  }

  const Kernels::Format& cast_of(const at::Tensor& tensor) const {
    return kernels_
        [tensor.scalar_type() == at::kHalf ? Compression::Fp16
                                           : Compression::Bf16];
  }

  const Codec codec_;
  const int64_t unit_;
  const Kernels& kernels_;
  const Kernels::Format& format_;
};

} // namespace

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
  float* const rest = residual.defined() ? residual.data_ptr<float>() : nullptr;

  if (in.scalar_type() == at::kFloat && factor == 1.0F && rest == nullptr) {
    pieces.encode(in.const_data_ptr<float>(), message, 0, in.numel());
    return;
  }
  for_pieces(in.numel(), [&](int64_t begin, int64_t n) {
    Piece piece;
    const float* values = pieces.load(in, begin, n, piece);
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
    pieces.decode(message, 0, out.numel(), out.data_ptr<float>());
    return;
  }
  for_pieces(out.numel(), [&](int64_t begin, int64_t n) {
    Piece piece;
    pieces.decode(message, begin, n, piece);
    pieces.store(piece, begin, n, out);
  });
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
      pieces.store(decoded, begin, n, result);
    }
  });
}

} // namespace hvd
