#include "collectives/running.h"
#include "collectives/shards.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

namespace hvd {

namespace {

/// Sum of sparse COO tensors: everyone gets everyone's entries, first how many
/// (they differ from rank to rank), then indices and values, and adds them up
/// in rank order.
class SparseAllreduce final : public Running {
 public:
  SparseAllreduce(const Collective& collective, Transport& transport)
      : out_(collective.outputs[0]),
        averages_(collective.signature.op == c10d::ReduceOp::AVG),
        transport_(transport),
        lane_(first_lane(collective)),
        own_(collective.inputs[0].coalesce()) {
    const auto kInt64 = at::TensorOptions().dtype(at::kLong);
    counts_ = at::empty({transport.size(), 1}, kInt64);
    counts_[transport.rank()][0] = own_._nnz();
    counts_request_ = transport_.exchange(
        to_all(transport_, counts_[transport_.rank()]),
        from_all(transport_, counts_),
        lane_);
  }

  void advance(Deadline deadline) override {
    counts_request_->wait(deadline);
    auto own_indices = own_._indices().contiguous();
    auto own_values = own_._values().contiguous();
    std::vector<Transfer> sends;
    std::vector<Transfer> receives;
    for (int peer = 0; peer < transport_.size(); ++peer) {
      if (peer == transport_.rank()) {
        indices_.push_back(own_indices);
        values_.push_back(own_values);
        continue;
      }
      const int64_t count = counts_[peer][0].item<int64_t>();
      auto shape = own_values.sizes().vec();
      shape[0] = count;
      indices_.push_back(
          at::empty({own_indices.size(0), count}, own_indices.options()));
      values_.push_back(at::empty(shape, own_values.options()));
      for (const auto& tensor : {indices_.back(), values_.back()}) {
        receives.push_back({peer, flat(tensor)});
      }
      for (const auto& tensor : {own_indices, own_values}) {
        sends.push_back({peer, flat(tensor)});
      }
    }
    entries_ = transport_.exchange(sends, receives, lane_.next_stage());
  }

  void finish(Deadline deadline) override {
    entries_->wait(deadline);
    auto sum = at::_sparse_coo_tensor_unsafe(
                   at::cat(indices_, 1),
                   at::cat(values_, 0),
                   own_.sizes(),
                   own_.options())
                   .coalesce();
    if (averages_) {
      std::optional<std::string_view> rounding;
      if (at::isIntegralType(sum.scalar_type(), /*includeBool=*/false)) {
        rounding = "trunc";
      }
      sum.values().div_(transport_.size(), rounding);
    }
    out_.copy_(sum);
  }

 private:
  at::Tensor out_;
  const bool averages_;
  Transport& transport_;
  const Lane lane_;
  const at::Tensor own_;
  at::Tensor counts_;
  RequestPtr counts_request_;
  std::vector<at::Tensor> indices_; ///< of each rank
  std::vector<at::Tensor> values_;
  RequestPtr entries_;
};

} // namespace

RunningPtr start_sparse_allreduce(
    const Collective& collective,
    Transport& transport) {
  return std::make_unique<SparseAllreduce>(collective, transport);
}

} // namespace hvd
