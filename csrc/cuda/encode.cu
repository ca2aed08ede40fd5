#include "cuda/encode.h"

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/warp.h"

namespace hvd::cuda {

namespace {

template <typename Element, typename Pieces>
__global__ void __launch_bounds__(kThreads) encode_pieces(
    const __grid_constant__ Pieces pieces,
    Number number,
    float factor,
    int shift) {
  Warp warp;
  each_tile(pieces, [&](const auto& piece, uint32_t i, auto find_next) {
    const Tile tile =
        tile_of<Element::kBits>(piece, i, bytes_of(number), shift);
    encode_tile<Element>(warp, tile, number, factor, find_next);
  });
}

} // namespace

void encode(
    Codec codec,
    Number number,
    const DeviceKernels::Piece* pieces,
    int64_t size,
    float factor,
    DeviceKernels::Stream stream) {
  with_format(codec, [&](auto element, int shift) {
    using Element = decltype(element);
    const auto tiles = [](const auto& piece) { return tiles_of(piece.count); };
    for_lists(pieces, size, tiles, [&]<typename Pieces>(const Pieces& list) {
      launch<&encode_pieces<Element, Pieces>>(
          list.tiles, stream, list, number, factor, shift);
    });
  });
}

} // namespace hvd::cuda
