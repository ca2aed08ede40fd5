#include "codec/device_kernels.h"

#include "codec/message.h"
#include "codec/pieces.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

namespace hvd {

namespace {

/// Encodes what is to be sent; what that loses becomes the residual.
void encode_piece(
    const Pieces& pieces,
    const Message& to,
    const float* values,
    int64_t begin,
    int64_t n,
    float* residual) {
  pieces.encode(values, to, begin, n);
  if (residual != nullptr) {
    Piece decoded;
    pieces.decode(to, begin, n, decoded);
    pieces.keep_lost(values, decoded, n, residual + begin);
  }
}

void encode(
    Codec codec,
    Number number,
    const DeviceKernels::Piece* list,
    int64_t size,
    float factor,
    DeviceKernels::Stream) {
  const Pieces pieces(codec);
  std::for_each(list, list + size, [&](const DeviceKernels::Piece& one) {
    const Message to(codec, one.values, one.scales);
    for_pieces(one.count, [&](int64_t begin, int64_t n) {
      Piece piece;
      const float* in = pieces.load(number, one.numbers, begin, n, piece);
      float* const rest = one.residual ? one.residual + begin : nullptr;
      pieces.multiply(in, factor, rest, n, piece);
      encode_piece(pieces, to, piece, begin, n, one.residual);
    });
  });
}

void decode(
    Codec codec,
    Number number,
    const DeviceKernels::Piece* list,
    int64_t size,
    DeviceKernels::Stream) {
  const Pieces pieces(codec);
  std::for_each(list, list + size, [&](const DeviceKernels::Piece& one) {
    const Message from(codec, one.values, one.scales);
    for_pieces(one.count, [&](int64_t begin, int64_t n) {
      if (number == Number::Float32) {
        auto* const out = static_cast<float*>(one.numbers);
        pieces.decode(from, begin, n, out + begin);
      } else {
        Piece piece;
        pieces.decode(from, begin, n, piece);
        pieces.store(number, piece, begin, n, one.numbers);
      }
    });
  });
}

void decode_sum_encode(
    Codec codec,
    const DeviceKernels::Source* sources,
    int64_t size,
    int64_t count,
    uint8_t* values,
    uint8_t* scales,
    float* residual,
    DeviceKernels::Stream) {
  const Pieces pieces(codec);
  const Message to(codec, values, scales);
  for_pieces(count, [&](int64_t begin, int64_t n) {
    Piece sum;
    std::for_each(sources, sources + size, [&](const auto& source) {
      // Nothing is written through these.
      const Message from(
          codec,
          const_cast<uint8_t*>(source.values),
          const_cast<uint8_t*>(source.scales));
      pieces.decode(from, begin, n, sum, &source != sources);
    });
    if (residual != nullptr) {
      pieces.multiply(sum, 1.0F, residual + begin, n, sum);
    }
    encode_piece(pieces, to, sum, begin, n, residual);
  });
}

void copy(
    const DeviceKernels::Copy* copies,
    int64_t size,
    DeviceKernels::Stream) {
  std::for_each(copies, copies + size, [](const DeviceKernels::Copy& one) {
    if (one.bytes > 0) {
      std::memcpy(one.to, one.from, one.bytes);
    }
  });
}

constexpr DeviceKernels kHost{encode, decode, decode_sum_encode, copy};

using Table = std::array<
    std::atomic<const DeviceKernels*>,
    c10::COMPILE_TIME_MAX_DEVICE_TYPES>;

Table& table() {
  static Table kernels{};
  return kernels;
}

} // namespace

const DeviceKernels* device_kernels(c10::DeviceType type) {
  if (type == c10::DeviceType::CPU) {
    return &kHost;
  }
  return table()[static_cast<size_t>(type)].load(std::memory_order_acquire);
}

void set_device_kernels(c10::DeviceType type, const DeviceKernels* kernels) {
  table()[static_cast<size_t>(type)].store(kernels, std::memory_order_release);
}

} // namespace hvd
