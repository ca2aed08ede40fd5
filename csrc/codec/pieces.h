#pragma once

#include "codec/codec.h"
#include "codec/device.h"
#include "codec/kernels.h"
#include "codec/message.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace hvd {

/// Values that go through the first-level cache at a time: a multiple of every
/// block.
constexpr int64_t kPiece = 1024;
/// Of which the casts can begin a piece.
constexpr int64_t kRow = 32;

/// From here on no cache holds all of a tensor, or what else it held is gone.
constexpr size_t kStreamedBytes = 8 << 20;

using Piece = float[kPiece];

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
    decode_by(add ? format_.decode_add : format_.decode, from, begin, n, out);
    const int64_t whole = n / unit_ * unit_;
    if (whole < n) {
      decode_rest(from, begin + whole, n - whole, out + whole, add);
    }
  }

  /// Everything into `out`, past the caches if it is a part of something larger
  /// than they are: what is written first is gone before anyone reads it.
  void decode_all(const Message& from, at::Tensor& out) const {
    auto* const to = out.data_ptr<float>();
    const bool streams = out.storage().nbytes() >= kStreamedBytes &&
        reinterpret_cast<uintptr_t>(to) % 64 == 0;
    const int64_t n = out.numel();
    const int64_t whole = n / unit_ * unit_;
    decode_by(streams ? format_.decode_stream : format_.decode, from, 0, n, to);
    if (whole < n) {
      decode_rest(from, whole, n - whole, to + whole, false);
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
      Number number,
      const void* numbers,
      int64_t begin,
      int64_t n,
      float* piece) const {
    if (number == Number::Float32) {
      return static_cast<const float*>(numbers) + begin;
    }
    uint8_t padded[2 * kPiece] = {};
    const uint8_t* whole = static_cast<const uint8_t*>(numbers) + 2 * begin;
    if (n % kRow != 0) {
      std::memcpy(padded, whole, 2 * n);
      whole = padded;
    }
    cast_of(number).decode(whole, nullptr, round_up(n, kRow), 0, piece);
    return piece;
  }

  /// The other way, for numbers of 16 bits.
  void store(
      Number number,
      const float* piece,
      int64_t begin,
      int64_t n,
      void* numbers) const {
    uint8_t* const out = static_cast<uint8_t*>(numbers) + 2 * begin;
    const int64_t whole = n / kRow * kRow;
    cast_of(number).encode(piece, whole, 0, out, nullptr);
    Piece rest = {};
    std::copy_n(piece + whole, n - whole, rest);
    uint8_t bytes[2 * kRow];
    cast_of(number).encode(rest, kRow, 0, bytes, nullptr);
    std::memcpy(out + 2 * whole, bytes, 2 * (n - whole));
  }

 private:
  /// Whole blocks.
  void decode_by(
      Kernels::Format::Decode kernel,
      const Message& from,
      int64_t begin,
      int64_t n,
      float* out) const {
    const int64_t whole = n / unit_ * unit_;
    if (whole > 0) {
      kernel(from.values(begin), from.scales(begin), whole, codec_.block, out);
    }
  }

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

  const Kernels::Format& cast_of(Number number) const {
    return kernels_
        [number == Number::Float16 ? Compression::Fp16 : Compression::Bf16];
  }

  const Codec codec_;
  const int64_t unit_;
  const Kernels& kernels_;
  const Kernels::Format& format_;
};

} // namespace hvd
