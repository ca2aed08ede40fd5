#include "codec/codec.h"
#include "collectives/running.h"
#include "collectives/shards.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <deque>
#include <optional>

namespace hvd {

namespace {

// Elements; whole blocks of any codec. As short as segments may be without
// their number showing, for the first and the last hide behind nothing.
constexpr int64_t kSegment = 256 * 1024;

at::Tensor nth_segment(const at::Tensor& shard, int64_t index) {
  return segment(shard, index, kSegment);
}

/// Encoded numbers in memory on loan.
struct Message {
  Message(const Codec& codec, int64_t count, ScratchPool& pool)
      : loan(pool.lend(encoded_bytes(codec, count))),
        encoded(loan.bytes(encoded_bytes(codec, count))) {}

  ScratchPool::Loan loan;
  Encoded encoded;
};

/// Reduce-scatter and allgather by direct exchange, as Allreduce, but what
/// travels is encoded. Every rank encodes its contribution to each shard, its
/// own among them. The owner of a shard decodes all of them, sums in fp32 in
/// rank order, and encodes the sum, which everybody decodes, the owner too. So
/// all ranks get the same bits; and as shards are whole blocks, it makes no
/// difference who owns what.
///
/// A window of segments is under way at a time: encoding and decoding hide
/// behind the wire, and memory stays bounded.
class CompressedAllreduce final : public Running {
 public:
  CompressedAllreduce(const Collective& collective, Transport& transport)
      : transport_(transport),
        codec_(collective.signature.codec),
        lane_(first_lane(collective)),
        factor_(
            collective.signature.op == c10d::ReduceOp::AVG
                ? 1.0F / static_cast<float>(collective.divisor)
                : 1.0F),
        inputs_(cut(flat(collective.inputs[0]))),
        outputs_(cut(flat(collective.outputs[0]))),
        count_(segment_count(inputs_, kSegment)),
        ahead_(std::min(count_, transport.segments_ahead())) {
    if (collective.residual) {
      feed_back(*collective.residual);
    }
    for (int64_t index = 0; index < ahead_; ++index) {
      begin(index);
    }
  }

  void advance(Deadline deadline) override {
    for (int64_t index = 0; index < count_; ++index) {
      reduce(index, deadline);
      if (index >= ahead_) {
        // Peers send that sum before the contribution just reduced: it is here.
        end_first(deadline);
      }
      if (index + ahead_ < count_) {
        begin(index + ahead_);
      }
    }
  }

  void finish(Deadline deadline) override {
    while (!window_.empty()) {
      end_first(deadline);
    }
  }

 private:
  /// A segment of every shard.
  struct Segment {
    std::vector<Message> contributions; ///< of this rank, to the peers' shards
    std::vector<Message> arrivals; ///< of the peers, to this rank's shard
    std::vector<Message> sums; ///< of the peers' shards
    std::deque<RequestPtr> contributing;
    RequestPtr arriving;
    RequestPtr summing;
    std::optional<Message> sum; ///< of this rank's shard
    RequestPtr passing_on;
  };

  std::vector<at::Tensor> cut(const at::Tensor& tensor) const {
    return shards(tensor, transport_.size(), codec_.block);
  }

  void feed_back(Residual& residual) {
    const auto& own = inputs_[transport_.rank()];
    if (!residual.contribution.defined()) {
      int64_t count = 0;
      for (const auto& shard : inputs_) {
        count += shard.numel();
      }
      residual.contribution = at::zeros({count}, at::kFloat);
      residual.shard = at::zeros({own.numel()}, at::kFloat);
    }
    lost_ = cut(residual.contribution);
    lost_sum_ = residual.shard;
    residual.finite = true;
    residual_ = &residual;
  }

  void look_through(const at::Tensor& sum) {
    if (residual_ != nullptr) {
      residual_->finite = all_finite(sum) && residual_->finite;
    }
  }

  Message message(const at::Tensor& values) {
    return {codec_, values.numel(), transport_.scratch()};
  }

  Segment& under_way(int64_t index) {
    return window_[index - ended_];
  }

  Message encoded_contribution(int rank, int64_t index) {
    const auto values = nth_segment(inputs_[rank], index);
    auto contribution = message(values);
    encode(
        codec_,
        values,
        factor_,
        lost_.empty() ? at::Tensor() : nth_segment(lost_[rank], index),
        contribution.encoded);
    return contribution;
  }

  void begin(int64_t index) {
    Segment& segment = window_.emplace_back();
    std::vector<Transfer> arrivals;
    std::vector<Transfer> sums;
    for (const int peer : transport_.others()) {
      const auto& own = inputs_[transport_.rank()];
      segment.arrivals.push_back(message(nth_segment(own, index)));
      segment.sums.push_back(message(nth_segment(outputs_[peer], index)));
      arrivals.push_back(to_or_from(peer, segment.arrivals.back()));
      sums.push_back(to_or_from(peer, segment.sums.back()));
    }
    segment.arriving = transport_.exchange({}, arrivals, lane_);
    segment.summing = transport_.exchange({}, sums, lane_.next_stage());
    for (const int peer : transport_.others()) {
      segment.contributions.push_back(encoded_contribution(peer, index));
      segment.contributing.push_back(transport_.exchange(
          {to_or_from(peer, segment.contributions.back())}, {}, lane_));
    }
  }

  void reduce(int64_t index, Deadline deadline) {
    Segment& segment = under_way(index);
    const int rank = transport_.rank();
    const auto own = encoded_contribution(rank, index);
    auto output = nth_segment(outputs_[rank], index);
    segment.arriving->wait(deadline);
    std::vector<const Encoded*> contributions;
    for (const auto& arrival : segment.arrivals) {
      contributions.push_back(&arrival.encoded);
    }
    contributions.insert(contributions.begin() + rank, &own.encoded);
    segment.sum.emplace(message(output));
    decode_sum_encode(
        codec_,
        contributions,
        lost_sum_.defined() ? nth_segment(lost_sum_, index) : at::Tensor(),
        segment.sum->encoded,
        output);
    look_through(output);
    segment.arrivals.clear();
    std::vector<Transfer> sends;
    for (const int peer : transport_.others()) {
      sends.push_back(to_or_from(peer, *segment.sum));
    }
    segment.passing_on = transport_.exchange(sends, {}, lane_.next_stage());
  }

  void end_first(Deadline deadline) {
    Segment& segment = window_.front();
    segment.summing->wait(deadline);
    for (size_t i = 0; i < transport_.others().size(); ++i) {
      auto output = nth_segment(outputs_[transport_.others()[i]], ended_);
      decode(codec_, segment.sums[i].encoded, output);
      look_through(output);
    }
    wait_all(segment.contributing, deadline);
    segment.passing_on->wait(deadline);
    window_.pop_front();
    ++ended_;
  }

  static Transfer to_or_from(int peer, const Message& message) {
    return {peer, message.encoded.bytes_to_move()};
  }

  Transport& transport_;
  const Codec codec_;
  const Lane lane_;
  const float factor_;
  const std::vector<at::Tensor> inputs_; ///< shards, as all below
  const std::vector<at::Tensor> outputs_;
  Residual* residual_ = nullptr; ///< without error feedback
  std::vector<at::Tensor> lost_; ///< empty then
  at::Tensor lost_sum_;
  const int64_t count_; ///< segments
  const int64_t ahead_;
  std::deque<Segment> window_;
  int64_t ended_ = 0; ///< index of the first in the window
};

} // namespace

RunningPtr start_compressed_allreduce(
    const Collective& collective,
    Transport& transport) {
  return std::make_unique<CompressedAllreduce>(collective, transport);
}

} // namespace hvd
