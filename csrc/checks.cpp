#include "checks.h"

#include "collectives/reduce.h"
#include "common/stream_mark.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

namespace hvd {

void check_not_captured(const char* verb, c10::Device device) {
  TORCH_CHECK(
      !is_captured(device),
      "hvd: ",
      verb,
      " while a graph is captured on ",
      device,
      "; the host does a part of it, which a graph would not repeat. Capture "
      "without it, or with the backend \"nccl\"");
}

void check_device(const char* verb, const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.is_cpu() || (tensor.is_cuda() && !tensor.is_sparse()),
      "hvd: ",
      verb,
      " of a ",
      tensor.is_sparse() ? "sparse tensor" : "tensor",
      " on ",
      tensor.device(),
      "; allowed are tensors on cpu and cuda, sparse ones on cpu");
  check_not_captured(verb, tensor.device());
}

void check_dense(const char* verb, const at::Tensor& tensor) {
  check_device(verb, tensor);
  TORCH_CHECK(
      tensor.layout() == at::kStrided,
      "hvd: ",
      verb,
      " of a tensor with layout ",
      tensor.layout(),
      "; it takes dense tensors (all_reduce also sparse COO ones)");
}

void check_dtype(
    Verb verb,
    const at::Tensor& tensor,
    const at::Tensor& expected) {
  check_dense(name(verb), tensor);
  TORCH_CHECK(
      tensor.scalar_type() == expected.scalar_type(),
      "hvd: ",
      name(verb),
      " of tensors of different dtypes, ",
      c10::getDtypeNames(expected.scalar_type()).first,
      " and ",
      c10::getDtypeNames(tensor.scalar_type()).first,
      "; all must be the same");
}

void check_writable(const char* verb, const at::Tensor& tensor) {
  TORCH_CHECK(
      at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
      "hvd: ",
      verb,
      " into a tensor of shape ",
      tensor.sizes(),
      " and strides ",
      tensor.strides(),
      ", whose elements share memory; clone() gives each its own");
}

void check_numel(
    Verb verb,
    const char* what,
    const at::Tensor& tensor,
    int64_t expected) {
  TORCH_CHECK(
      tensor.numel() == expected,
      "hvd: ",
      name(verb),
      ": ",
      what,
      " has ",
      tensor.numel(),
      " elements (shape ",
      tensor.sizes(),
      ") where ",
      expected,
      " are needed");
}

void check_count(Verb verb, const char* what, size_t count, int size) {
  TORCH_CHECK(
      count == static_cast<size_t>(size),
      "hvd: ",
      name(verb),
      ": ",
      count,
      " ",
      what,
      " in a group of ",
      size,
      " ranks; there must be one per rank");
}

void check_op(Verb verb, at::ScalarType dtype, ReduceOp op) {
  TORCH_CHECK(
      can_reduce(dtype, op),
      "hvd: ",
      name(verb),
      " with ReduceOp.",
      name(op),
      " is not defined on ",
      c10::getDtypeNames(dtype).first,
      " tensors. None is on 8-bit floating point, uint16, uint32 and uint64; "
      "of the rest SUM and PRODUCT take all, AVG all but bool, PREMUL_SUM "
      "floating point and complex, MIN and MAX real numbers, BAND, BOR and "
      "BXOR integers and bool");
}

} // namespace hvd
