#pragma once

#include <c10/core/ScalarType.h>

#include "common/collective.h"

#include <vector>

namespace hvd {

/// Whether `reduce_in_order` is defined for the pair. SUM and PRODUCT are on
/// all dtypes but 8-bit floats; AVG on the same but bool; MIN and MAX on real
/// numbers; BAND, BOR and BXOR on integers and bool; PREMUL_SUM, a sum of what
/// its caller has scaled, on floating point and complex. On bool SUM and MAX
/// are or, PRODUCT and MIN are and.
bool can_reduce(at::ScalarType dtype, ReduceOp op);

/// The dtype that elements are accumulated in: fp32 for 16-bit floating point,
/// also as parts of complex numbers, else their own.
at::ScalarType accumulation_dtype(at::ScalarType dtype);

struct Reduction {
  ReduceOp op;
  int divisor; ///< of AVG
  at::ScalarType from; ///< of the sources
  at::ScalarType to; ///< `from`, or one of them accumulates the other
};

/// out[i] = op over r of sources[r][i], folded from r = 0 up, for `count`
/// elements, which are accumulated in accumulation_dtype() and rounded once.
/// AVG divides the accumulated sum. `out` may be one of the sources.
void reduce_in_order(
    const Reduction& reduction,
    const std::vector<const void*>& sources,
    void* out,
    int64_t count);

} // namespace hvd
