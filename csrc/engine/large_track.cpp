#include "engine/large_track.h"

namespace hvd {

namespace {

constexpr size_t kBatchesInFlight = 2;

// Long enough to hide the latency of the second stage, and no longer: the first
// of a batch is done when the last is.
constexpr int64_t kBatchBytes = 16 * 1024 * 1024;

} // namespace

Batch LargeTrack::next(uint64_t /*tail*/) {
  Batch batch;
  if (started.size() == kBatchesInFlight) {
    return batch;
  }
  int64_t bytes = 0;
  do {
    bytes += tensor_bytes(*queue.front().collective);
    batch.items.push_back(std::move(queue.front()));
    queue.pop_front();
  } while (!queue.empty() &&
           queue.front().collective->seq < agreement_.agreed() &&
           bytes + tensor_bytes(*queue.front().collective) <= kBatchBytes);
  return batch;
}

Rest LargeTrack::start(Batch& batch) {
  for (const auto& item : batch.items) {
    batch.running.push_back(hvd::start(*item.collective, transport_));
  }
  return Rest::Outputs;
}

bool LargeTrack::finish(Batch& batch) {
  finish_all(batch.running, batch.deadline);
  batch.times.exchanged = Clock::now();
  return true;
}

} // namespace hvd
