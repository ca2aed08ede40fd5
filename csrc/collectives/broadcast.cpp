#include "collectives/running.h"
#include "collectives/shards.h"

namespace hvd {

namespace {

/// Scatter and allgather (van de Geijn 1994): the root sends each rank one
/// shard, and each rank passes its own on to the others, segment by segment. No
/// link carries more than twice the tensor, whatever the number of ranks.
class Broadcast final : public Running {
 public:
  Broadcast(const Collective& collective, Transport& transport)
      : transport_(transport),
        lane_(first_lane(collective)),
        root_(collective.signature.root),
        shards_(shards(
            flat(
                collective.inputs.empty() ? collective.outputs[0]
                                          : collective.inputs[0]),
            transport.size())),
        elements_(segment_elements(shards_[0], transport)),
        count_(segment_count(shards_, elements_)) {
    const int rank = transport.rank();
    for (int64_t index = 0; index < count_; ++index) {
      std::vector<Transfer> sends;
      std::vector<Transfer> receives;
      if (rank == root_) {
        sends = segments_of_others(transport, shards_, index, elements_);
      } else {
        receives.push_back({root_, segment(shards_[rank], index, elements_)});
      }
      scattered_.push_back(transport.exchange(sends, receives, lane_));
    }
  }

  void advance(Deadline deadline) override {
    for (int64_t index = 0; index < count_; ++index) {
      // The root has all of it; the others first wait for their own.
      if (transport_.rank() != root_) {
        scattered_[index]->wait(deadline);
      }
      passed_on_.push_back(pass_on(index));
    }
  }

  void finish(Deadline deadline) override {
    wait_all(scattered_, deadline);
    wait_all(passed_on_, deadline);
  }

 private:
  RequestPtr pass_on(int64_t index) {
    const int rank = transport_.rank();
    std::vector<Transfer> sends;
    std::vector<Transfer> receives;
    for (const int peer : transport_.others()) {
      if (rank != root_) {
        receives.push_back({peer, segment(shards_[peer], index, elements_)});
      }
      if (peer != root_) {
        sends.push_back({peer, segment(shards_[rank], index, elements_)});
      }
    }
    return transport_.exchange(sends, receives, lane_.next_stage());
  }

  Transport& transport_;
  const Lane lane_;
  const int root_;
  const std::vector<at::Tensor> shards_;
  const int64_t elements_; ///< of a segment
  const int64_t count_;
  std::deque<RequestPtr> scattered_;
  std::deque<RequestPtr> passed_on_;
};

} // namespace

RunningPtr start_broadcast(const Collective& collective, Transport& transport) {
  return std::make_unique<Broadcast>(collective, transport);
}

} // namespace hvd
