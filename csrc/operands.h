#pragma once

#include "common/collective.h"

#include <ATen/core/Tensor.h>

namespace hvd {

/// What a collective reads and writes for the tensors of the caller: each of
/// them itself where it is contiguous and in reach of who moves it, else a
/// contiguous stand-in on the host, which the collective is told to fill when
/// it starts or to copy back when it is done.

/// Whether its memory is what it shows: a conjugate may be a view of what it is
/// the conjugate of.
bool is_plain(const at::Tensor& tensor);

/// As detach() does, for the caller may give `tensor` other memory while the
/// collective is under way; but not through the dispatcher.
at::Tensor detached(const at::Tensor& tensor);

/// To read.
at::Tensor source(Collective& collective, const at::Tensor& tensor);

/// To write. Throws if two elements of `tensor` share memory.
at::Tensor target(Collective& collective, const at::Tensor& tensor);

/// To read and write. Throws as target() does.
at::Tensor in_place(Collective& collective, const at::Tensor& tensor);

/// The product with the factor of PREMUL_SUM, of this rank's own choice; else
/// `tensor` itself, which is to be read.
at::Tensor premultiplied(
    Collective& collective,
    const at::Tensor& tensor,
    const c10d::ReduceOp& op);

/// Has no output share memory with an input, which may yet have to be read
/// when it is written; but for a rank's own piece in its place.
void keep_apart(Collective& collective, int rank);

} // namespace hvd
