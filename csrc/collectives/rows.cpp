#include "collectives/rows.h"

#include <ATen/ops/empty.h>

#include <cstring>

namespace hvd {

RowExchange::RowExchange(Transport& transport, int64_t bytes)
    : transport_(transport),
      bytes_(bytes),
      rows_(at::empty({transport.size() * bytes}, at::kByte)),
      ranks_{transport.rank()} {
  for (const auto& [sends, receives] : frame_steps(transport)) {
    auto& step = steps_.emplace_back();
    for (const auto& [peer, count] : sends) {
      const auto rows = static_cast<int64_t>(count);
      step.sends.push_back({peer, rows_.narrow(0, 0, rows * bytes)});
    }
    for (const auto& [peer, ranks] : receives) {
      const auto begin = static_cast<int64_t>(ranks_.size());
      const auto rows = static_cast<int64_t>(ranks.size());
      step.receives.push_back(
          {peer, rows_.narrow(0, begin * bytes, rows * bytes)});
      ranks_.insert(ranks_.end(), ranks.begin(), ranks.end());
    }
  }
}

void RowExchange::post(const void* row, const Lane& lane) {
  std::memcpy(rows_.mutable_data_ptr(), row, static_cast<size_t>(bytes_));
  lane_ = lane;
  start(0);
}

std::vector<const std::byte*> RowExchange::collect(Deadline deadline) {
  for (size_t step = 0; step < steps_.size(); ++step) {
    if (step > 0) {
      start(step);
    }
    step_->wait(deadline);
  }
  std::vector<const std::byte*> rows(ranks_.size());
  const auto* row = static_cast<const std::byte*>(rows_.const_data_ptr());
  for (const int rank : ranks_) {
    rows[rank] = row;
    row += bytes_;
  }
  return rows;
}

// A rank hears from each other at most once in all steps together, so they can
// have one lane.
void RowExchange::start(size_t step) {
  const auto& [sends, receives] = steps_[step];
  step_ = transport_.exchange(sends, receives, lane_);
}

} // namespace hvd
