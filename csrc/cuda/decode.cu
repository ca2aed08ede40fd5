#include "cuda/decode.h"

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/warp.h"

namespace hvd::cuda {

namespace {

template <typename Element, typename Pieces>
__global__ void __launch_bounds__(kThreads) decode_pieces(
    const __grid_constant__ Pieces pieces,
    Number number,
    int shift) {
  Warp warp;
  each_tile(pieces, [&](const auto& piece, uint32_t i, auto find_next) {
    const Tile tile =
        tile_of<Element::kBits>(piece, i, bytes_of(number), shift);
    decode_tile<Element>(warp, tile, number, find_next);
  });
}

} // namespace

void decode(
    Codec codec,
    Number number,
    const DeviceKernels::Piece* pieces,
    int64_t size,
    DeviceKernels::Stream stream) {
  with_format(codec, [&](auto element, int shift) {
    using Element = decltype(element);
    const auto tiles = [](const auto& piece) { return tiles_of(piece.count); };
    for_lists(pieces, size, tiles, [&]<typename Pieces>(const Pieces& list) {
      launch<&decode_pieces<Element, Pieces>>(
          list.tiles, stream, list, number, shift);
    });
  });
}

} // namespace hvd::cuda
