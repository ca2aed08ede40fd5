#pragma once

// What a team of 32 lanes works on at a time: a tile of 1024 values, a multiple
// of every block, in 8 rows of 128 values, of which each lane holds four
// neighbours. So a lane moves 16 bytes of fp32, and a team a whole line, at a
// time, and 8 loads of each lane are under way before the first is needed.

#include "codec/device.h"
#include "codec/elements.h"

#include <cstdint>

#if defined(__CUDA_ARCH__)
#define HVD_UNROLL _Pragma("unroll")
#define HVD_NO_UNROLL _Pragma("unroll 1")
#else
#define HVD_UNROLL
#define HVD_NO_UNROLL
#endif

namespace hvd {

constexpr int kLanes = 32;
constexpr int kFour = 4;
constexpr int kRow = kLanes * kFour;
constexpr int kRows = 8;
constexpr int kTile = kRow * kRows;

/// A tile of a piece. Its pointers are to its own first value and block.
struct Tile {
  void* numbers;
  uint8_t* values;
  uint8_t* scales;
  float* residual; ///< or null
  int count; ///< of values; the tile continues as zeros
  int shift; ///< a block has 2^shift values

  /// The place of a lane's four in the tile.
  static HVD_HOST_DEVICE int place(int lane, int row) {
    return row * kRow + lane * kFour;
  }
  /// How many of the four there are.
  HVD_HOST_DEVICE int values_at(int place) const {
    const int left = count - place;
    return left < 0 ? 0 : left < kFour ? left : kFour;
  }
  HVD_HOST_DEVICE bool is_whole() const {
    return count == kTile;
  }
  HVD_HOST_DEVICE int block_at(int place) const {
    return place >> shift;
  }
  HVD_HOST_DEVICE int blocks() const {
    return (count + (1 << shift) - 1) >> shift;
  }
};

HVD_HOST_DEVICE int64_t tiles_of(int64_t count) {
  return (count + kTile - 1) / kTile;
}

HVD_HOST_DEVICE int bytes_of(Number number) {
  return number == Number::Float32 ? 4 : 2;
}

/// Tile `index` of a piece, whose codes have kBits.
template <int kBits>
HVD_HOST_DEVICE Tile tile_of(
    const DeviceKernels::Piece& piece,
    int64_t index,
    int bytes_of_number,
    int shift) {
  const int64_t begin = index * kTile;
  const int64_t left = piece.count - begin;
  auto* const numbers = static_cast<uint8_t*>(piece.numbers);
  return {
      numbers + begin * bytes_of_number,
      piece.values + begin / 8 * kBits,
      piece.scales + 2 * (begin >> shift),
      piece.residual == nullptr ? nullptr : piece.residual + begin,
      static_cast<int>(left < kTile ? left : kTile),
      shift};
}

} // namespace hvd
