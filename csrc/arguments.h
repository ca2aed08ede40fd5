#pragma once

#include "common/collective.h"
#include "engine/engine.h"

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

namespace hvd {

/// Turns the arguments of one c10d call into a Collective. Each function checks
/// first and throws an error that echoes what was given and says what is
/// allowed; nothing has been sent then.
///
/// Tensors are dense, of any strides; what stands for those that `engine`
/// cannot move where they are is in operands.h.
class Arguments {
 public:
  /// `engine`: of the group; outlives this.
  Arguments(const Engine& engine, std::chrono::milliseconds timeout)
      : engine_(engine),
        rank_(engine.transport().rank()),
        size_(engine.transport().size()),
        timeout_(timeout) {}

  /// In place. A sparse COO tensor becomes a sparse all_reduce (SUM or AVG).
  Collective allreduce(const at::Tensor& tensor, const c10d::ReduceOp& op)
      const;

  /// In place on the root; only read elsewhere.
  Collective reduce(
      const at::Tensor& tensor,
      const c10d::ReduceOp& op,
      int64_t root) const;

  Collective broadcast(const at::Tensor& tensor, int64_t root) const;

  /// `outputs`: one per rank, of any sizes; this rank's as large as `input`.
  Collective allgather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input) const;

  /// `output`: `size` times as large as `input`.
  Collective allgather_into(const at::Tensor& output, const at::Tensor& input)
      const;

  /// `outputs`: one per rank, all as large as `input`; empty off the root.
  Collective gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int64_t root) const;

  /// `output`: `size` times as large as `input`; anything off the root.
  Collective gather_into(
      const at::Tensor& output,
      const at::Tensor& input,
      int64_t root) const;

  /// `inputs`: one per rank, all as large as `output`; empty off the root.
  Collective scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int64_t root) const;

  /// `inputs`: one per rank, of any sizes; this rank's as large as `output`.
  Collective reduce_scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      const c10d::ReduceOp& op) const;

  /// `input`: `size` times as large as `output`.
  Collective reduce_scatter_from(
      const at::Tensor& output,
      const at::Tensor& input,
      const c10d::ReduceOp& op) const;

  /// One tensor to and from each rank, of any sizes.
  Collective alltoall(
      const std::vector<at::Tensor>& outputs,
      const std::vector<at::Tensor>& inputs) const;

  /// Cuts along the first dimension; empty splits mean equal ones.
  Collective alltoall_single(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<int64_t>& output_splits,
      const std::vector<int64_t>& input_splits) const;

  Collective barrier() const;

  /// What a message is sent from: the tensor, or a contiguous copy of it.
  /// Blocks until a device has computed it.
  at::Tensor to_send(const at::Tensor& tensor) const;

  /// What a message is received into: the tensor, or a contiguous stand-in that
  /// has yet to be copied to it.
  at::Tensor to_receive(const at::Tensor& tensor) const;

 private:
  /// `count`: as in Signature.
  Collective make(Verb verb, const at::Tensor& like, int64_t count = 0) const;
  /// Of a `collective` that may have copies to make before those of `inputs`.
  Collective reduce_scatter(
      Collective collective,
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      const c10d::ReduceOp& op) const;
  bool in_reach_of_messages(const at::Tensor& tensor) const;
  void set_root(Collective& collective, int64_t root) const;
  /// Of a list that only the root has: one tensor for each rank.
  void check_on_root(Verb verb, const char* what, size_t count, int64_t root)
      const;

  const Engine& engine_;
  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
};

/// A list of one; one in braces would be copied.
std::vector<Collective> only(Collective collective);

/// The tensors of all lists, in order.
std::vector<at::Tensor> flattened(
    const std::vector<std::vector<at::Tensor>>& lists);

} // namespace hvd
