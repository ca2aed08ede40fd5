#pragma once

// What one launch works on: a list that travels as a parameter of the kernel,
// so that no memory of the device has to be filled first. Teams share out its
// tiles, wherever these belong.

#include "codec/elements.h"

#include <cstdint>

namespace hvd {

/// Bytes of parameters that a kernel may have, from CUDA 12.1 on sm_70 on; 4096
/// before. (CUDA C++ Programming Guide, __global__ function parameters)
constexpr int kMostParameterBytes = 32764;
/// A short list has a kernel of its own, for it costs less to launch.
constexpr int kFewParameterBytes = 2048;

template <typename Entry, int kParameterBytes>
struct List {
  /// Bytes left to other parameters, and to this list's own end.
  static constexpr int kOthers = 64;
  static constexpr int kCapacity = (kParameterBytes - kOthers) /
      static_cast<int>(sizeof(Entry) + sizeof(uint32_t));

  Entry entries[kCapacity];
  uint32_t first_tiles[kCapacity]; ///< number of the entry's first tile
  int32_t size = 0;
  uint32_t tiles = 0;

  /// The entry that the tile belongs to.
  HVD_HOST_DEVICE int find(uint32_t tile) const {
    int low = 0;
    int beyond = size;
    while (beyond - low > 1) {
      const int middle = (low + beyond) / 2;
      if (first_tiles[middle] <= tile) {
        low = middle;
      } else {
        beyond = middle;
      }
    }
    return low;
  }

  /// Takes as many entries as there is room for; returns how many.
  template <typename TilesOf>
  int64_t fill(const Entry* from, int64_t count, TilesOf tiles_of) {
    while (size < kCapacity && size < count) {
      entries[size] = from[size];
      first_tiles[size] = tiles;
      tiles += static_cast<uint32_t>(tiles_of(from[size]));
      ++size;
    }
    return size;
  }
};

} // namespace hvd
