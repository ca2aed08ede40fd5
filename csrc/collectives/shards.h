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

/// Segment `index` of every other rank's shard, to be sent to it or received
/// from it.
std::vector<Transfer> segments_of_others(
    const Transport& transport,
    const std::vector<at::Tensor>& shards,
    int64_t index,
    int64_t elements);

/// Waits for all but the last ones, and forgets those that it waited for.
void wait_all_but(
    int64_t last,
    std::deque<RequestPtr>& requests,
    Deadline deadline);

/// Waits for all of them.
void wait_all(std::deque<RequestPtr>& requests, Deadline deadline);

/// The first half of a two-stage reduction: every rank sends shard p to rank p
/// and folds the shards it gets, in rank order. A window of segments is under
/// way at a time, and receives are posted for some of them, so that neither
/// what a late rank has to keep nor the memory for what arrives grows with the
/// tensor.
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

  /// Segments of the longest shard.
  int64_t count() const {
    return count_;
  }
  /// No rank folds a segment so many after one that this rank has not folded.
  int64_t window() const {
    return window_;
  }

 private:
  void post_sends(int64_t folded);
  void post_receives(int64_t arrived);
  void fold(Deadline deadline, int64_t index, const at::Tensor& to);
  at::Tensor own_segment(int64_t index) const;
  std::vector<const void*> contributions(
      const at::Tensor& own,
      const Arrivals& others) const;

  const std::vector<at::Tensor> shards_;
  const ReduceOp op_;
  const int divisor_;
  Transport& transport_;
  const Lane lane_;
  const int64_t elements_; ///< of a segment
  const int64_t count_;
  const int64_t ahead_; ///< segments whose receives are posted at a time
  const int64_t window_;
  int64_t sent_ = 0; ///< segments
  int64_t posted_ = 0; ///< segments whose receives are
  std::deque<RequestPtr> sends_;
  std::deque<ArrivalsPtr> arrivals_;
};

} // namespace hvd
