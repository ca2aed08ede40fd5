#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/sum.h"
#include "cuda/warp.h"

namespace hvd::cuda {

namespace {

template <typename Element, typename Sources>
__global__ void __launch_bounds__(kThreads) sum_messages(
    const __grid_constant__ Sources sources,
    const DeviceKernels::Piece sum,
    int shift) {
  Warp warp;
  sum_tiles<Element>(
      warp,
      sources.entries,
      sources.size,
      sum,
      shift,
      first_tile(),
      tile_stride());
}

} // namespace

void decode_sum_encode(
    Codec codec,
    const DeviceKernels::Source* sources,
    int64_t size,
    int64_t count,
    uint8_t* values,
    uint8_t* scales,
    float* residual,
    DeviceKernels::Stream stream) {
  const DeviceKernels::Piece sum{nullptr, values, scales, residual, count};
  with_format(codec, [&](auto element, int shift) {
    using Element = decltype(element);
    const auto no_tiles = [](const auto&) { return 0; };
    for_lists(
        sources, size, no_tiles, [&]<typename Sources>(const Sources& list) {
          if (list.size < size) {
            throw std::runtime_error(
                "hvd: a sum of more than " + std::to_string(list.size) +
                " messages");
          }
          launch<&sum_messages<Element, Sources>>(
              tiles_of(count), stream, list, sum, shift);
        });
  });
}

} // namespace hvd::cuda
