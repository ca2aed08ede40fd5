#include "engine/statistics.h"

#include <algorithm>
#include <limits>

namespace hvd {

Statistics::Statistics(std::string group, const std::vector<double>& edges)
    : group_(std::move(group)), rows_(edges.size() + 1) {
  for (size_t i = 0; i < edges.size(); ++i) {
    rows_[i].upto = edges[i];
  }
  rows_.back().upto = std::numeric_limits<double>::infinity();
}

void Statistics::follow(const Transport* transport) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (transport_ != nullptr) {
    totals_.sent = transport_->sent();
  }
  transport_ = transport;
}

void Statistics::add(const Response& response) {
  const auto bytes = static_cast<double>(response.bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  auto& row = *std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) {
    return bytes <= row.upto;
  });
  ++row.count;
  row.tensors += response.tensors;
  row.bytes += bytes;
  row.seconds += response.seconds;
  row.rates += bytes / response.seconds;
  totals_.frames += response.framed;
  ++totals_.responses;
  totals_.tensors += response.tensors;
  totals_.tensor_bytes += bytes;
}

void Statistics::add_message() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++totals_.messages;
}

void Statistics::grow_fusion_buffer(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  totals_.fusion_buffer_bytes =
      std::max(totals_.fusion_buffer_bytes, static_cast<double>(bytes));
}

std::vector<Statistics::Row> Statistics::rows() {
  std::lock_guard<std::mutex> lock(mutex_);
  return rows_;
}

Statistics::Totals Statistics::totals() {
  std::lock_guard<std::mutex> lock(mutex_);
  Totals totals = totals_;
  if (transport_ != nullptr) {
    totals.sent = transport_->sent();
  }
  totals.waiting = seconds(waiting_.total());
  totals.elapsed = seconds(Clock::now() - born_);
  return totals;
}

} // namespace hvd
