#pragma once

// Bytes from one place to another, 4096 at a time. What is written is cut where
// its address is a multiple of 16, so that stores are of 16 bytes but at both
// ends; loads are as wide as the other address allows.

#include "codec/device.h"
#include "cuda/memory.h"
#include "cuda/tile.h"

#include <cstdint>

namespace hvd {

constexpr int kUnit = 16;
constexpr int kUnitsOfLane = 8;
constexpr int64_t kCopyTile = kUnit * kLanes * kUnitsOfLane;

/// How far `address` is beyond a multiple of 16.
HVD_HOST_DEVICE int beyond_unit(const void* address) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(address) % kUnit);
}

HVD_HOST_DEVICE int64_t tiles_of(const DeviceKernels::Copy& copy) {
  const int64_t bytes = copy.bytes + beyond_unit(copy.to);
  return copy.bytes == 0 ? 0 : (bytes + kCopyTile - 1) / kCopyTile;
}

/// 16 bytes in loads as wide as T.
template <typename T>
HVD_HOST_DEVICE Four load_unit_by(const uint8_t* from) {
  uint32_t words[4] = {};
  HVD_UNROLL
  for (int i = 0; i < static_cast<int>(kUnit / sizeof(T)); ++i) {
    const auto part =
        static_cast<uint64_t>(global(reinterpret_cast<const T*>(from))[i]);
    const int bit = static_cast<int>(8 * sizeof(T)) * i;
    words[bit / 32] |= static_cast<uint32_t>(part) << (bit % 32);
    if (sizeof(T) == 8) {
      words[bit / 32 + 1] = static_cast<uint32_t>(part >> 32);
    }
  }
  return {
      {float_of(words[0]),
       float_of(words[1]),
       float_of(words[2]),
       float_of(words[3])}};
}

HVD_HOST_DEVICE Four load_unit(const uint8_t* from) {
  if (is_aligned(from, 16)) {
    return load_aligned(from);
  }
  if (is_aligned(from, 8)) {
    return load_unit_by<uint64_t>(from);
  }
  if (is_aligned(from, 4)) {
    return load_unit_by<uint32_t>(from);
  }
  return is_aligned(from, 2) ? load_unit_by<uint16_t>(from)
                             : load_unit_by<uint8_t>(from);
}

/// 16 bytes at a time, aligned in both places. No load waits for another.
template <typename Team>
HVD_HOST_DEVICE void copy_whole_tile(
    Team& team,
    const uint8_t* from,
    uint8_t* to) {
  team.each([&](int lane) {
    Four units[kUnitsOfLane];
    HVD_UNROLL
    for (int row = 0; row < kUnitsOfLane; ++row) {
      units[row] = load_aligned(from + (row * kLanes + lane) * kUnit);
    }
    HVD_UNROLL
    for (int row = 0; row < kUnitsOfLane; ++row) {
      store_aligned(units[row], to + (row * kLanes + lane) * kUnit);
    }
  });
}

/// The 16 bytes at `at`, as far as they belong to the copy.
HVD_HOST_DEVICE void copy_unit(const DeviceKernels::Copy& copy, int64_t at) {
  auto* const to = static_cast<uint8_t*>(copy.to);
  const auto* const from = static_cast<const uint8_t*>(copy.from);
  if (at >= 0 && at + kUnit <= copy.bytes) {
    store_aligned(load_unit(from + at), to + at);
    return;
  }
  for (int64_t i = at < 0 ? 0 : at; i < at + kUnit && i < copy.bytes; ++i) {
    global(to)[i] = global(from)[i];
  }
}

template <typename Team>
HVD_HOST_DEVICE void copy_tile(
    Team& team,
    const DeviceKernels::Copy& copy,
    int64_t index) {
  auto* const to = static_cast<uint8_t*>(copy.to);
  const auto* const from = static_cast<const uint8_t*>(copy.from);
  const int64_t begin = index * kCopyTile - beyond_unit(to);
  const bool whole = begin >= 0 && begin + kCopyTile <= copy.bytes;
  if (whole && is_aligned(from + begin, kUnit)) {
    copy_whole_tile(team, from + begin, to + begin);
    return;
  }
  team.each([&](int lane) {
    for (int row = 0; row < kUnitsOfLane; ++row) {
      copy_unit(copy, begin + (row * kLanes + lane) * kUnit);
    }
  });
}

} // namespace hvd
