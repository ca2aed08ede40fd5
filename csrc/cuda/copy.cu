#include "cuda/copy.h"

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/warp.h"

namespace hvd::cuda {

namespace {

template <typename Copies>
__global__ void __launch_bounds__(kThreads)
    copy_bytes(const __grid_constant__ Copies copies) {
  Warp warp;
  each_tile(copies, [&](const auto& copy, uint32_t i, auto find_next) {
    find_next();
    copy_tile(warp, copy, i);
  });
}

} // namespace

void copy(
    const DeviceKernels::Copy* copies,
    int64_t size,
    DeviceKernels::Stream stream) {
  const auto tiles = [](const auto& one) { return tiles_of(one); };
  for_lists(copies, size, tiles, [&]<typename Copies>(const Copies& list) {
    launch<&copy_bytes<Copies>>(list.tiles, stream, list);
  });
}

} // namespace hvd::cuda
