#pragma once

#include "common/collective.h"

#include <ATen/core/Tensor.h>

namespace hvd {

/// What may be wrong with an argument of a c10d call. Each throws an error that
/// echoes what was given and says what is allowed. `verb`: as users know it.

/// No graph is being captured on the current stream: what the host does would
/// not be in it.
void check_not_captured(const char* verb, c10::Device device);

/// On a device whose tensors can be moved, now.
void check_device(const char* verb, const at::Tensor& tensor);

/// The same, and dense.
void check_dense(const char* verb, const at::Tensor& tensor);

/// The same, and of the dtype of `expected`.
void check_dtype(
    Verb verb,
    const at::Tensor& tensor,
    const at::Tensor& expected);

/// No two of its elements share memory, as those of an expanded one do.
void check_writable(const char* verb, const at::Tensor& tensor);

void check_numel(
    Verb verb,
    const char* what,
    const at::Tensor& tensor,
    int64_t expected);

/// One of `what` for each of `size` ranks.
void check_count(Verb verb, const char* what, size_t count, int size);

/// Whether the operation is defined on numbers of the dtype.
void check_op(Verb verb, at::ScalarType dtype, ReduceOp op);

} // namespace hvd
