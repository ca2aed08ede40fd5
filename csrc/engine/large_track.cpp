#include "engine/large_track.h"

namespace hvd {

namespace {

constexpr size_t kInFlight = 2;

} // namespace

Batch LargeTrack::next(uint64_t /*tail*/) {
  Batch batch;
  if (started.size() < kInFlight) {
    batch.items.push_back(std::move(queue.front()));
    queue.pop_front();
  }
  return batch;
}

void LargeTrack::start(Batch& batch) {
  batch.running.push_back(hvd::start(*batch.items[0].collective, transport_));
}

bool LargeTrack::finish(Batch& batch) {
  batch.running[0]->finish(batch.deadline);
  return true;
}

} // namespace hvd
