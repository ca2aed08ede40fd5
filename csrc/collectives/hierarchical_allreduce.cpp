#include "codec/codec.h"
#include "collectives/by_host.h"
#include "collectives/running.h"
#include "collectives/shards.h"
#include "transport/subgroup.h"

#include <algorithm>
#include <deque>
#include <optional>

namespace hvd {

namespace {

// What a rank folds of a piece, in the accumulation dtype. Not longer than a
// segment; and with two hosts its halves are long enough for a network.
constexpr int64_t kSliceBytes = 1024 * 1024;

// Pieces that ranks of a host send each other ahead of the one they fold.
constexpr int64_t kAhead = 2;

// Pieces whose sums are on their way to other hosts, and as many back: what is
// done inside a host hides behind the network.
constexpr int64_t kWindow = 4;

/// The groups that this rank is in.
struct Levels {
  explicit Levels(Transport& transport)
      : Levels(transport, transport.hosts(), transport.rank()) {}

  Levels(Transport& transport, const Hosts& hosts, int rank)
      : columns(hosts.fewest()),
        host(
            transport,
            hosts.ranks_on(hosts.host_of(rank)),
            hosts.place_of(rank)) {
    if (host.rank() < columns) {
      column.emplace(
          transport, hosts.ranks_in(host.rank()), hosts.host_of(rank));
    }
  }

  /// A slice for each rank of this host; those beyond the columns get nothing.
  std::vector<at::Tensor> slices(const at::Tensor& piece, int64_t unit) const {
    auto result = shards(piece, columns, unit);
    result.resize(host.size(), piece.narrow(0, 0, 0));
    return result;
  }

  const int columns; ///< ranks in the same place on their hosts
  Subgroup host;
  std::optional<Subgroup> column; ///< nothing for who is beyond the columns
};

/// A part of the tensor on its way through all stages.
class Piece {
 public:
  /// Starts to send to the ranks of this host. `index`: of this piece.
  Piece(
      const Collective& whole,
      Levels& levels,
      int64_t begin,
      int64_t count,
      int64_t index)
      : levels_(levels),
        lane_(first_lane(whole)),
        outputs_(levels.slices(
            flat(whole.outputs[0]).narrow(0, begin, count),
            whole.signature.codec.block)),
        slice_(slice(whole, index)) {
    const auto reduction = inside_host(whole.signature);
    inside_.emplace(
        levels.slices(
            flat(whole.inputs[0]).narrow(0, begin, count),
            whole.signature.codec.block),
        reduction.op,
        reduction.divisor,
        levels.host,
        lane_);
  }

  /// Folds the slices of this host; starts to send the sum to other hosts.
  void reduce_inside(Deadline deadline) {
    inside_->finish(deadline, slice_.inputs[0], [](auto /*index*/) {});
    inside_.reset();
    if (levels_.column) {
      between_ = is_compressed(slice_)
          ? start_compressed_allreduce(slice_, *levels_.column)
          : start_allreduce(slice_, *levels_.column);
    }
  }

  void reduce_between(Deadline deadline) {
    if (between_) {
      between_->advance(deadline);
    }
  }

  /// Gives what came out to the ranks of this host, and gets theirs.
  void pass_on(Deadline deadline) {
    if (between_) {
      between_->finish(deadline);
      between_.reset();
    }
    sum_.reset();
    passing_ = levels_.host.exchange(
        to_all(levels_.host, slice_.outputs[0]),
        from_all(levels_.host, outputs_),
        lane_.next_stage());
  }

  void finish(Deadline deadline) {
    passing_->wait(deadline);
  }

  /// Whether all of the sum is finite; known with error feedback.
  bool is_finite() const {
    return slice_.residual->finite &&
        std::ranges::all_of(levels_.host.others(), [this](int peer) {
             return all_finite(outputs_[peer]);
           });
  }

 private:
  /// What this rank reduces between the hosts: an all_reduce of their sums,
  /// which are in the outputs' memory if that can hold them.
  Collective slice(const Collective& whole, int64_t index) {
    const auto& output = outputs_[levels_.host.rank()];
    const auto reduction = between_hosts(whole);
    Collective slice;
    slice.signature = whole.signature;
    slice.signature.count = output.numel();
    slice.divisor = whole.divisor;
    slice.seq = whole.seq;
    slice.inputs = slice.outputs = {output};
    if (reduction.from != reduction.to) {
      const auto width = static_cast<int64_t>(c10::elementSize(reduction.from));
      sum_.emplace(levels_.host.scratch().lend(kSliceBytes));
      slice.inputs = {sum_->bytes(output.numel() * width).view(reduction.from)};
    }
    if (whole.residual) {
      slice.residual = {whole.residual, &whole.residual->pieces[index]};
    }
    return slice;
  }

  Levels& levels_;
  const Lane lane_;
  const std::vector<at::Tensor> outputs_; ///< a slice for each rank of the host
  std::optional<ScratchPool::Loan> sum_;
  const Collective slice_;
  std::optional<ShardReduction> inside_;
  RunningPtr between_;
  RequestPtr passing_;
};

/// Reduce-scatter among the ranks of each host, all_reduce among those in the
/// same place on all hosts, all at once, allgather inside the hosts. So each
/// host sends 2 (h - 1) / h of the tensor to others, the least there is, and
/// all of its ranks have a part in that. With other numbers of ranks on some
/// hosts those beyond the fewest only contribute and receive.
///
/// A codec is for what goes between hosts; what it encodes are sums of hosts.
/// 16-bit floating point is sent between hosts in fp32 on the way to the sum,
/// so it is rounded once.
class HierarchicalAllreduce final : public Running {
 public:
  HierarchicalAllreduce(const Collective& collective, Transport& transport)
      : collective_(collective),
        levels_(transport),
        length_(
            levels_.columns * kSliceBytes /
            static_cast<int64_t>(c10::elementSize(
                accumulation_dtype(collective.signature.dtype)))),
        count_((collective.outputs[0].numel() + length_ - 1) / length_) {
    if (collective.residual) {
      collective.residual->pieces.resize(count_);
      collective.residual->finite = true;
    }
    for (int64_t index = 0; index < std::min(kAhead, count_); ++index) {
      start_next();
    }
  }

  void advance(Deadline deadline) override {
    for (int64_t step = 0; step < count_ + 2 * kWindow; ++step) {
      if (step < count_) {
        pieces_[step].reduce_inside(deadline);
        start_next();
      }
      const int64_t sent = step - kWindow;
      if (sent >= 0 && sent < count_) {
        pieces_[sent].reduce_between(deadline);
      }
      const int64_t summed = sent - kWindow;
      if (summed >= 0) {
        pieces_[summed].pass_on(deadline);
      }
    }
  }

  void finish(Deadline deadline) override {
    auto* const residual = collective_.residual.get();
    for (auto& piece : pieces_) {
      piece.finish(deadline);
      if (residual != nullptr) {
        residual->finite = piece.is_finite() && residual->finite;
      }
    }
  }

 private:
  void start_next() {
    const auto index = static_cast<int64_t>(pieces_.size());
    const int64_t begin = index * length_;
    const int64_t left = collective_.outputs[0].numel() - begin;
    if (left > 0) {
      pieces_.emplace_back(
          collective_, levels_, begin, std::min(length_, left), index);
    }
  }

  const Collective& collective_;
  Levels levels_;
  const int64_t length_; ///< elements of a piece
  const int64_t count_; ///< of pieces
  std::deque<Piece> pieces_;
};

} // namespace

RunningPtr start_hierarchical_allreduce(
    const Collective& collective,
    Transport& transport) {
  return std::make_unique<HierarchicalAllreduce>(collective, transport);
}

} // namespace hvd
