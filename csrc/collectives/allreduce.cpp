#include "collectives/running.h"
#include "collectives/shards.h"

#include <algorithm>
#include <deque>

namespace hvd {

namespace {

/// Reduce-scatter and allgather by direct exchange: each rank folds one shard
/// in rank order and gives it to everyone, segment by segment. Every rank sends
/// and receives 2 (n - 1) / n of the tensor, the least there is (Patarasuk and
/// Yuan 2009), and all ranks get the same bits.
class Allreduce final : public Running {
 public:
  Allreduce(const Collective& collective, Transport& transport)
      : transport_(transport),
        lane_(first_lane(collective)),
        outputs_(shards(flat(collective.outputs[0]), transport.size())),
        elements_(segment_elements(outputs_[0], transport)),
        reduction_(
            shards(flat(collective.inputs[0]), transport.size()),
            collective.signature.op,
            collective.divisor,
            transport,
            lane_) {
    post_receives(0);
  }

  void advance(Deadline deadline) override {
    reduction_.finish(deadline, outputs_[transport_.rank()], [&](auto index) {
      sends_.push_back(send(index));
      post_receives(index + 1);
      wait_all_but(2 * reduction_.window(), sends_, deadline);
      wait_all_but(2 * reduction_.window(), receives_, deadline);
    });
  }

  void finish(Deadline deadline) override {
    wait_all(receives_, deadline);
    wait_all(sends_, deadline);
  }

 private:
  // In time: peers have folded none that is further ahead.
  void post_receives(int64_t folded) {
    const int64_t last =
        std::min(reduction_.count(), folded + reduction_.window());
    for (; posted_ < last; ++posted_) {
      receives_.push_back(receive(posted_));
    }
  }

  // A peer's segment arrives where this rank's contribution to it is read from.
  // The peer has that by then, or it could not have folded it.
  RequestPtr receive(int64_t index) {
    return transport_.exchange(
        {},
        segments_of_others(transport_, outputs_, index, elements_),
        lane_.next_stage());
  }

  RequestPtr send(int64_t index) {
    const auto own = segment(outputs_[transport_.rank()], index, elements_);
    return transport_.exchange(to_all(transport_, own), {}, lane_.next_stage());
  }

  Transport& transport_;
  const Lane lane_;
  const std::vector<at::Tensor> outputs_;
  const int64_t elements_; ///< of a segment
  ShardReduction reduction_;
  int64_t posted_ = 0; ///< segments whose sum's receives are
  std::deque<RequestPtr> receives_;
  std::deque<RequestPtr> sends_;
};

} // namespace

RunningPtr start_allreduce(const Collective& collective, Transport& transport) {
  return std::make_unique<Allreduce>(collective, transport);
}

} // namespace hvd
