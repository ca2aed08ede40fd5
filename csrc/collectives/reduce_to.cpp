// reduce (to one rank) and reduce_scatter: both begin with a ShardReduction.

#include "collectives/running.h"
#include "collectives/shards.h"

#include <ATen/ops/empty_like.h>

namespace hvd {

namespace {

/// Every rank folds one shard and sends it to the root. The tensors of the
/// other ranks are only read.
class Reduce final : public Running {
 public:
  Reduce(const Collective& collective, Transport& transport)
      : transport_(transport),
        lane_(first_lane(collective)),
        root_(collective.signature.root),
        inputs_(shards(flat(collective.inputs[0]), transport.size())),
        elements_(segment_elements(inputs_[0], transport)),
        reduction_(
            inputs_,
            collective.signature.op,
            collective.divisor,
            transport,
            lane_) {
    if (transport.rank() == root_) {
      outputs_ = shards(flat(collective.outputs[0]), transport.size());
    }
  }

  void advance(Deadline deadline) override {
    const bool is_root = transport_.rank() == root_;
    const auto& own = inputs_[transport_.rank()];
    const auto folded =
        is_root ? outputs_[transport_.rank()] : at::empty_like(own);
    reduction_.finish(deadline, folded, [&](auto index) {
      std::vector<Transfer> sends;
      std::vector<Transfer> receives;
      if (is_root) {
        receives = segments_of_others(transport_, outputs_, index, elements_);
      } else {
        sends.push_back({root_, segment(folded, index, elements_)});
      }
      to_root_.push_back(
          transport_.exchange(sends, receives, lane_.next_stage()));
      wait_all_but(2 * reduction_.window(), to_root_, deadline);
    });
  }

  void finish(Deadline deadline) override {
    wait_all(to_root_, deadline);
  }

 private:
  Transport& transport_;
  const Lane lane_;
  const int root_;
  const std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> outputs_; ///< on the root
  const int64_t elements_; ///< of a segment
  ShardReduction reduction_;
  std::deque<RequestPtr> to_root_;
};

class ReduceScatter final : public Running {
 public:
  ReduceScatter(const Collective& collective, Transport& transport)
      : output_(flat(collective.outputs[0])),
        reduction_(
            flattened(collective.inputs),
            collective.signature.op,
            collective.divisor,
            transport,
            first_lane(collective)) {}

  void advance(Deadline deadline) override {
    reduction_.finish(deadline, output_, [](auto /*index*/) {});
  }

  void finish(Deadline /*deadline*/) override {}

 private:
  static std::vector<at::Tensor> flattened(
      const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> result;
    result.reserve(tensors.size());
    for (const auto& tensor : tensors) {
      result.push_back(flat(tensor));
    }
    return result;
  }

  const at::Tensor output_;
  ShardReduction reduction_;
};

} // namespace

RunningPtr start_reduce(const Collective& collective, Transport& transport) {
  return std::make_unique<Reduce>(collective, transport);
}

RunningPtr start_reduce_scatter(
    const Collective& collective,
    Transport& transport) {
  return std::make_unique<ReduceScatter>(collective, transport);
}

} // namespace hvd
