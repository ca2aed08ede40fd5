#include "codec/codec.h"
#include "codec/device_kernels.h"
#include "codec/message.h"
#include "collectives/device_allreduce.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace hvd {

namespace {

// Values of each shard in a segment: its kernels run while another is on its
// way. A multiple of every block.
constexpr int64_t kSegment = 4 * 1024 * 1024;
// Shards and messages begin where kernels are at their best: values and bytes.
constexpr int64_t kShardUnit = 1024;
constexpr int64_t kMessageUnit = 128;

/// The blocks of all members, one after the other, as if they were one tensor;
/// a shard of them belongs to each rank, the last ones may end in blocks that
/// nobody has.
class CompressedAllreduce {
 public:
  CompressedAllreduce(
      const std::vector<const Collective*>& members,
      DeviceTransport& transport)
      : members_(members),
        transport_(transport),
        kernels_(*device_kernels(transport.type())),
        codec_(members[0]->signature.codec),
        like_(members[0]->outputs[0]),
        number_(number_of(like_.scalar_type()).value()),
        stream_(native_handle(current_stream(like_.device()))),
        size_(members[0]->divisor) {
    for (const Collective* member : members_) {
      begins_.push_back(end_);
      end_ += round_up(member->signature.count, codec_.block);
    }
    shard_ = round_up((end_ + size_ - 1) / size_, kShardUnit);
    if (auto* residual = members_[0]->residual.get()) {
      feed_back(*residual);
    }
  }

  /// Three stages, each a segment behind the one before.
  void launch() {
    const int64_t segments = (shard_ + kSegment - 1) / kSegment;
    for (int64_t step = 0; step < segments + 2; ++step) {
      if (step < segments) {
        contribute(segments_.emplace_back(step * kSegment, *this));
      }
      if (step >= 1 && step <= segments) {
        reduce(segments_[step - 1]);
      }
      if (step >= 2) {
        collect(segments_[step - 2]);
      }
    }
  }

 private:
  /// A part of every shard.
  struct Segment {
    Segment(int64_t from, const CompressedAllreduce& whole)
        : begin(from),
          count(std::min(kSegment, whole.shard_ - from)),
          message(round_up(encoded_bytes(whole.codec_, count), kMessageUnit)) {}

    const int64_t begin; ///< in each shard
    const int64_t count; ///< values
    const int64_t message; ///< bytes
    at::Tensor out; ///< a message to each rank, or this rank's sum
    at::Tensor in; ///< one from each
    DeviceTransport::WorkPtr work;
  };

  void feed_back(Residual& residual) {
    const auto options = like_.options().dtype(at::kFloat);
    if (!residual.contribution.defined()) {
      residual.contribution = at::zeros({end_}, options);
      residual.shard = at::zeros({shard_}, options);
    }
    lost_ = residual.contribution.data_ptr<float>();
    lost_sum_ = residual.shard.data_ptr<float>();
  }

  at::Tensor messages(int64_t count, const Segment& segment) const {
    return at::empty(
        {count * segment.message}, like_.options().dtype(at::kByte));
  }

  uint8_t* message(const at::Tensor& all, int rank, const Segment& of) const {
    return all.data_ptr<uint8_t>() + rank * of.message;
  }
  uint8_t* scales(uint8_t* message, const Segment& of) const {
    return message + round_up(Message::value_bytes(codec_, of.count), 2);
  }

  /// What the members have of a segment, in the messages of `all`.
  std::vector<DeviceKernels::Piece> pieces(
      const at::Tensor& all,
      const Segment& segment) const {
    std::vector<DeviceKernels::Piece> result;
    const auto element = static_cast<int64_t>(like_.element_size());
    for (int rank = 0; rank < size_; ++rank) {
      uint8_t* const values = message(all, rank, segment);
      const int64_t first = rank * shard_ + segment.begin;
      const int64_t last = first + segment.count;
      const auto after =
          std::upper_bound(begins_.begin(), begins_.end(), first);
      for (auto i = static_cast<size_t>(after - begins_.begin()) - 1;
           i < members_.size() && begins_[i] < last;
           ++i) {
        const int64_t from = std::max(first, begins_[i]);
        const int64_t to =
            std::min(last, begins_[i] + members_[i]->signature.count);
        if (from >= to) {
          continue;
        }
        auto* const numbers =
            static_cast<uint8_t*>(members_[i]->outputs[0].mutable_data_ptr());
        result.push_back(
            {numbers + (from - begins_[i]) * element,
             values + Message::value_bytes(codec_, from - first),
             scales(values, segment) +
                 Message::scale_bytes(codec_, from - first),
             lost_ == nullptr ? nullptr : lost_ + from,
             to - from});
      }
    }
    return result;
  }

  /// Values that nobody has must not disturb those beside them in a block.
  bool fills_its_blocks() const {
    return size_ * shard_ == end_ &&
        std::all_of(members_.begin(), members_.end(), [&](const auto* member) {
             return member->signature.count % codec_.block == 0;
           });
  }

  void contribute(Segment& segment) {
    segment.out = messages(size_, segment);
    segment.in = messages(size_, segment);
    if (!fills_its_blocks()) {
      segment.out.zero_();
    }
    const bool averages = members_[0]->signature.op == c10d::ReduceOp::AVG;
    const auto list = pieces(segment.out, segment);
    kernels_.encode(
        codec_,
        number_,
        list.data(),
        static_cast<int64_t>(list.size()),
        averages ? 1.0F / static_cast<float>(size_) : 1.0F,
        stream_);
    segment.work =
        transport_.all_to_all(segment.in, segment.out, members_[0]->timeout);
  }

  void reduce(Segment& segment) {
    segment.work->wait();
    std::vector<DeviceKernels::Source> sources;
    for (int rank = 0; rank < size_; ++rank) {
      uint8_t* const values = message(segment.in, rank, segment);
      sources.push_back({values, scales(values, segment)});
    }
    const auto sum = messages(1, segment);
    auto* const values = sum.data_ptr<uint8_t>();
    kernels_.decode_sum_encode(
        codec_,
        sources.data(),
        size_,
        segment.count,
        values,
        scales(values, segment),
        lost_sum_ == nullptr ? nullptr : lost_sum_ + segment.begin,
        stream_);
    segment.out = sum;
    segment.work =
        transport_.all_gather(segment.in, segment.out, members_[0]->timeout);
  }

  void collect(Segment& segment) {
    segment.work->wait();
    const auto list = pieces(segment.in, segment);
    kernels_.decode(
        codec_,
        number_,
        list.data(),
        static_cast<int64_t>(list.size()),
        stream_);
    segment.out.reset();
    segment.in.reset();
  }

  const std::vector<const Collective*>& members_;
  DeviceTransport& transport_;
  const DeviceKernels& kernels_;
  const Codec codec_;
  const at::Tensor like_;
  const Number number_;
  const DeviceKernels::Stream stream_;
  const int size_;
  std::vector<int64_t> begins_; ///< of the members, in values
  int64_t end_ = 0;
  int64_t shard_ = 0; ///< values, whole blocks
  float* lost_ = nullptr; ///< without error feedback
  float* lost_sum_ = nullptr;
  std::vector<Segment> segments_;
};

} // namespace

void launch_compressed_allreduces(
    const std::vector<const Collective*>& members,
    DeviceTransport& transport) {
  CompressedAllreduce(members, transport).launch();
}

} // namespace hvd
