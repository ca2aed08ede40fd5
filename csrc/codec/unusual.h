#pragma once

#include <cstdint>

namespace hvd {

// Blocks that the fast loops leave alone: some values are not finite, or all
// are so small or so large that the scale is not usual. A power of two brings
// these to the middle of the range, exactly, and back. `Element` is one of
// E4m3, E5m2, Int8 and Int4.

/// Encodes `count` values, one block; returns the scale.
template <typename Element>
uint16_t encode_unusual(const float* in, int64_t count, uint8_t* values);

/// Any block, with any bits. A value beyond fp32's largest, which rounding can
/// make of a smaller one, becomes that.
template <typename Element>
void decode_unusual(
    const uint8_t* values,
    uint16_t scale,
    int64_t count,
    float* out);

} // namespace hvd
