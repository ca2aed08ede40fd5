#pragma once

#include <c10/core/ScalarType.h>

#include "common/collective.h"

#include <vector>

namespace hvd {

/// Whether `reduce_in_order` is defined for the pair: all operations on
/// integers, no AVG and logical meaning on bool (SUM and MAX are or, PRODUCT
/// and MIN and), no bitwise operations on floating point, only SUM, AVG and
/// PRODUCT on complex, nothing on 8-bit floats.
bool can_reduce(at::ScalarType dtype, ReduceOp op);

/// out[i] = op over r of sources[r][i], folded from r = 0 up, for `count`
/// elements. 16-bit floating point is accumulated in fp32 and rounded once.
/// AVG divides the accumulated sum by the number of sources. `out` may be one
/// of the sources.
void reduce_in_order(
    at::ScalarType dtype,
    ReduceOp op,
    const std::vector<const void*>& sources,
    void* out,
    int64_t count);

} // namespace hvd
