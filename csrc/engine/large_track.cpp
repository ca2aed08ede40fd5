#include "engine/large_track.h"

#include "engine/tail_exchange.h"

#include <algorithm>

namespace hvd {

namespace {

constexpr size_t kBatchesInFlight = 2;

// Long enough to hide the latency of the second stage, and no longer: the first
// of a batch is done when the last is.
constexpr int64_t kBatchBytes = 16 * 1024 * 1024;

// A tensor of so many times the cutoff takes long enough that one more short
// message to each rank does not show.
constexpr int64_t kCutoffs = 4;

} // namespace

Batch LargeTrack::next(uint64_t tail) {
  Batch batch;
  tail_ = tail;
  if (started.size() == kBatchesInFlight) {
    return batch;
  }
  const uint64_t agreed = std::max(agreement_.agreed(), agreed_.load());
  int64_t bytes = 0;
  do {
    bytes += tensor_bytes(*queue.front().collective);
    batch.items.push_back(std::move(queue.front()));
    queue.pop_front();
  } while (!queue.empty() && queue.front().collective->seq < agreed &&
           bytes + tensor_bytes(*queue.front().collective) <= kBatchBytes);
  return batch;
}

Rest LargeTrack::start(Batch& batch) {
  for (const auto& item : batch.items) {
    batch.running.push_back(hvd::start(*item.collective, transport_));
    if (tells_tail(*item.collective)) {
      batch.running.push_back(
          std::make_unique<TailExchange>(
              *item.collective, transport_, tail_, agreed_));
    }
  }
  return Rest::Outputs;
}

bool LargeTrack::tells_tail(const Collective& collective) const {
  // Where waiting threads move messages, one after the other costs no time.
  return collective.signature.verb == Verb::Allreduce &&
      transport_.size() > 1 && transport_.moves_by_itself() &&
      tensor_bytes(collective) >= kCutoffs * limits_.cutoff;
}

bool LargeTrack::finish(Batch& batch) {
  finish_all(batch.running, batch.deadline);
  batch.times.exchanged = Clock::now();
  return true;
}

} // namespace hvd
