#pragma once

#include "common/collective.h"
#include "transport/transport.h"

#include <deque>
#include <functional>
#include <vector>

namespace hvd {

/// `tensor` as one dimension.
at::Tensor flat(const at::Tensor& tensor);

/// Cuts a flat tensor into one shard per rank, in units of so many elements;
/// the first ones are a unit longer where the size does not divide.
std::vector<at::Tensor> shards(
    const at::Tensor& tensor,
    int size,
    int64_t unit = 1);

/// Segment `index` of a flat tensor cut into segments of so many elements;
/// empty past its end.
at::Tensor segment(const at::Tensor& shard, int64_t index, int64_t elements);

/// Segments of the longest of these shards.
int64_t segment_count(const std::vector<at::Tensor>& shards, int64_t elements);

/// Elements of a segment of such a tensor.
int64_t segment_elements(const at::Tensor& like, const Transport& transport);

/// Waits for all of them.
void wait_all(const std::vector<RequestPtr>& requests, Deadline deadline);

/// The first half of a two-stage reduction: every rank sends shard p to rank p
/// and folds the shards it gets, in rank order. All sends are posted at once,
/// receives a few segments ahead, so memory stays bounded.
class ShardReduction {
 public:
  /// Starts sending. `shards`: flat, one per rank; read until finish() returns.
  ShardReduction(
      std::vector<at::Tensor> shards,
      ReduceOp op,
      int divisor,
      Transport& transport,
      const Lane& lane);

  /// Folds every rank's shard for this rank into `out`, which may be this
  /// rank's own shard, and calls `folded(index)` after each segment. `out` may
  /// be of the other dtype that a Reduction has if all shards are single
  /// segments in both.
  void finish(
      Deadline deadline,
      const at::Tensor& out,
      const std::function<void(int64_t)>& folded);

 private:
  struct Arrival {
    std::vector<ScratchPool::Loan> buffers;
    std::vector<at::Tensor> pieces; ///< by rank, this rank's own among them
    RequestPtr request;
  };

  void post_sends();
  void post_receives();
  void post_receive();

  const std::vector<at::Tensor> shards_;
  const ReduceOp op_;
  const int divisor_;
  Transport& transport_;
  const Lane lane_;
  const int64_t elements_; ///< of a segment
  const int64_t count_;
  std::vector<RequestPtr> sends_;
  int64_t posted_ = 0; ///< segments whose receive is posted
  std::deque<Arrival> arrivals_;
};

} // namespace hvd
