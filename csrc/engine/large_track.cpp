#include "engine/large_track.h"

namespace hvd {

namespace {

constexpr size_t kBatchesInFlight = 2;

// Long enough to hide the latency of the second stage, and no longer: the first
// of a batch is done when the last is.
constexpr int64_t kBatchBytes = 16 * 1024 * 1024;

int64_t bytes_of(const Collective& collective) {
  const auto element =
      static_cast<int64_t>(c10::elementSize(collective.signature.dtype));
  return collective.signature.count * element;
}

} // namespace

Batch LargeTrack::next(uint64_t /*tail*/) {
  Batch batch;
  if (started.size() == kBatchesInFlight) {
    return batch;
  }
  int64_t bytes = 0;
  do {
    bytes += bytes_of(*queue.front().collective);
    batch.items.push_back(std::move(queue.front()));
    queue.pop_front();
  } while (!queue.empty() &&
           queue.front().collective->seq < agreement_.agreed() &&
           bytes + bytes_of(*queue.front().collective) <= kBatchBytes);
  return batch;
}

void LargeTrack::start(Batch& batch) {
  for (const auto& item : batch.items) {
    batch.running.push_back(hvd::start(*item.collective, transport_));
  }
}

bool LargeTrack::finish(Batch& batch) {
  finish_all(batch.running, batch.deadline);
  return true;
}

} // namespace hvd
