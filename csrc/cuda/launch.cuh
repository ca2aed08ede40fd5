#pragma once

// How kernels over tiles are launched: with as many warps as the device runs at
// once, or as there are tiles; each takes the next tile that none has taken,
// counting in steps of their number.

#include "codec/fours.h"
#include "cuda/list.h"
#include "cuda/tile.h"

#include "common/compression.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace hvd::cuda {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kLanes;
constexpr int kMostDevices = 64;

/// The first tile of this warp, and the way to its next.
__device__ __forceinline__ uint32_t first_tile() {
  return blockIdx.x * kWarps + threadIdx.x / kLanes;
}
__device__ __forceinline__ uint32_t tile_stride() {
  return gridDim.x * kWarps;
}

/// Calls `on_tile(entry, tile, find_next)` for each tile of a list that is this
/// warp's, which has to call find_next() once, best while it waits for memory:
/// to find the entry of the next tile takes as long as a load.
template <typename Entries, typename OnTile>
__device__ __forceinline__ void each_tile(const Entries& list, OnTile on_tile) {
  int next = list.find(first_tile());
  for (uint32_t i = first_tile(); i < list.tiles; i += tile_stride()) {
    const int entry = next;
    on_tile(list.entries[entry], i - list.first_tiles[entry], [&] {
      next = list.find(i + tile_stride());
    });
  }
}

inline void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) {
    throw std::runtime_error(
        std::string("hvd: ") + call + ": " + cudaGetErrorString(error));
  }
}

/// Blocks of threads that the current device runs at once.
template <auto kKernel>
int resident_blocks() {
  static std::array<std::atomic<int>, kMostDevices> known{};
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  int blocks = device < kMostDevices ? known[device].load() : 0;
  if (blocks == 0) {
    int processors = 0;
    check(
        cudaDeviceGetAttribute(
            &processors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
    check(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &blocks, kKernel, kThreads, 0),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    blocks *= processors;
    if (device < kMostDevices) {
      known[device].store(blocks);
    }
  }
  return blocks;
}

template <typename... Parameters>
std::array<void*, sizeof...(Parameters)> addresses(
    void (*)(Parameters...),
    const std::type_identity_t<Parameters>&... arguments) {
  return {const_cast<void*>(static_cast<const void*>(&arguments))...};
}

/// kKernel(arguments...) with warps for so many tiles.
template <auto kKernel, typename... Arguments>
void launch(
    int64_t tiles,
    DeviceKernels::Stream stream,
    const Arguments&... arguments) {
  if (tiles == 0) {
    return;
  }
  const int64_t needed = (tiles + kWarps - 1) / kWarps;
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>(needed, resident_blocks<kKernel>()));
  auto parameters = addresses(kKernel, arguments...);
  check(
      cudaLaunchKernel(
          reinterpret_cast<const void*>(kKernel),
          dim3(blocks),
          dim3(kThreads),
          parameters.data(),
          0,
          static_cast<cudaStream_t>(stream)),
      "cudaLaunchKernel");
}

/// Calls `on_format(element, shift)` with a value of the codec's element type
/// and its blocks as a power of two.
template <typename OnFormat>
void with_format(Codec codec, OnFormat on_format) {
  const auto block = static_cast<uint32_t>(codec.block);
  const bool allowed =
      block >= 32 && block <= uint32_t{kTile} && std::has_single_bit(block);
  if (!is_cast(codec.compression) && !allowed) {
    throw std::runtime_error(
        "hvd: a block of " + std::to_string(codec.block) + " values");
  }
  const int shift = std::countr_zero(block);
  switch (codec.compression) {
    case Compression::None:
      throw std::runtime_error("hvd: no kernel for compression none");
    case Compression::Fp16:
      return on_format(HalfCast(), 0);
    case Compression::Bf16:
      return on_format(BFloat16Cast(), 0);
    case Compression::Fp8:
      return on_format(E4m3(), shift);
    case Compression::Fp8E5M2:
      return on_format(E5m2(), shift);
    case Compression::Int8:
      return on_format(Int8(), shift);
    case Compression::Int4:
      return on_format(Int4(), shift);
  }
}

/// Cuts entries into lists and calls `on_list` for each.
template <typename Entry, typename TilesOf, typename OnList>
void for_lists(
    const Entry* entries,
    int64_t size,
    TilesOf tiles_of,
    OnList on_list) {
  using Few = List<Entry, kFewParameterBytes>;
  using Many = List<Entry, kMostParameterBytes>;
  for (int64_t begin = 0; begin < size;) {
    const auto add = [&](auto list) {
      begin += list.fill(entries + begin, size - begin, tiles_of);
      on_list(list);
    };
    if (size - begin <= Few::kCapacity) {
      add(Few());
    } else {
      add(Many());
    }
  }
}

} // namespace hvd::cuda
