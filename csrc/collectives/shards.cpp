#include "collectives/shards.h"

#include "collectives/reduce.h"

#include <algorithm>

namespace hvd {

at::Tensor flat(const at::Tensor& tensor) {
  return tensor.view({-1});
}

std::vector<at::Tensor> shards(
    const at::Tensor& tensor,
    int size,
    int64_t unit) {
  std::vector<at::Tensor> result;
  result.reserve(size);
  const int64_t units = (tensor.numel() + unit - 1) / unit;
  const int64_t base = units / size;
  const int64_t longer = units % size;
  int64_t begin = 0;
  for (int rank = 0; rank < size; ++rank) {
    const int64_t wanted = (base + (rank < longer ? 1 : 0)) * unit;
    const int64_t count = std::min(wanted, tensor.numel() - begin);
    result.push_back(tensor.narrow(0, begin, count));
    begin += count;
  }
  return result;
}

at::Tensor segment(const at::Tensor& shard, int64_t index, int64_t elements) {
  const int64_t begin = std::min(index * elements, shard.numel());
  return shard.narrow(0, begin, std::min(elements, shard.numel() - begin));
}

int64_t segment_count(const std::vector<at::Tensor>& shards, int64_t elements) {
  int64_t count = 0;
  for (const auto& shard : shards) {
    count = std::max(count, (shard.numel() + elements - 1) / elements);
  }
  return count;
}

int64_t segment_elements(const at::Tensor& like, const Transport& transport) {
  return transport.segment_bytes() / static_cast<int64_t>(like.element_size());
}

std::vector<Transfer> segments_of_others(
    const Transport& transport,
    const std::vector<at::Tensor>& shards,
    int64_t index,
    int64_t elements) {
  std::vector<Transfer> transfers;
  for (const int peer : transport.others()) {
    transfers.push_back({peer, segment(shards[peer], index, elements)});
  }
  return transfers;
}

void wait_all_but(
    int64_t last,
    std::deque<RequestPtr>& requests,
    Deadline deadline) {
  while (static_cast<int64_t>(requests.size()) > last) {
    requests.front()->wait(deadline);
    requests.pop_front();
  }
}

void wait_all(std::deque<RequestPtr>& requests, Deadline deadline) {
  wait_all_but(0, requests, deadline);
}

ShardReduction::ShardReduction(
    std::vector<at::Tensor> shards,
    ReduceOp op,
    int divisor,
    Transport& transport,
    const Lane& lane)
    : shards_(std::move(shards)),
      op_(op),
      divisor_(divisor),
      transport_(transport),
      lane_(lane),
      elements_(segment_elements(shards_[0], transport)),
      count_(segment_count(shards_, elements_)),
      ahead_(transport.segments_ahead()),
      window_(transport.segments_under_way()) {
  if (transport.moves_by_itself()) {
    // Receives first: peers send when they hear of them, and would not before
    // all that is sent here has gone down the same line.
    post_receives(0);
    post_sends(0);
  } else {
    // Sends first: to post a receive may be to copy what has come, and the
    // peers would wait for that.
    post_sends(0);
    post_receives(0);
  }
}

void ShardReduction::post_sends(int64_t folded) {
  for (; sent_ < std::min(count_, folded + window_); ++sent_) {
    sends_.push_back(transport_.exchange(
        segments_of_others(transport_, shards_, sent_, elements_), {}, lane_));
  }
}

void ShardReduction::post_receives(int64_t arrived) {
  for (; posted_ < std::min(count_, arrived + ahead_); ++posted_) {
    const auto bytes = static_cast<int64_t>(own_segment(posted_).nbytes());
    arrivals_.push_back(transport_.receive(transport_.others(), bytes, lane_));
  }
}

at::Tensor ShardReduction::own_segment(int64_t index) const {
  return segment(shards_[transport_.rank()], index, elements_);
}

std::vector<const void*> ShardReduction::contributions(
    const at::Tensor& own,
    const Arrivals& others) const {
  std::vector<const void*> by_rank;
  by_rank.reserve(shards_.size());
  for (size_t place = 0; place < transport_.others().size(); ++place) {
    by_rank.push_back(others.data(place));
  }
  by_rank.insert(by_rank.begin() + transport_.rank(), own.const_data_ptr());
  return by_rank;
}

void ShardReduction::fold(
    Deadline deadline,
    int64_t index,
    const at::Tensor& to) {
  const auto arrivals = std::move(arrivals_.front());
  arrivals_.pop_front();
  arrivals->wait(deadline);
  post_receives(index + 1);
  reduce_in_order(
      {op_, divisor_, shards_[0].scalar_type(), to.scalar_type()},
      contributions(own_segment(index), *arrivals),
      to.mutable_data_ptr(),
      to.numel());
}

void ShardReduction::finish(
    Deadline deadline,
    const at::Tensor& out,
    const std::function<void(int64_t)>& folded) {
  for (int64_t index = 0; index < count_; ++index) {
    fold(deadline, index, segment(out, index, elements_));
    folded(index);
    post_sends(index + 1);
    wait_all_but(2 * window_, sends_, deadline);
  }
  wait_all(sends_, deadline);
}

} // namespace hvd
