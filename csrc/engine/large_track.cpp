#include "engine/large_track.h"

#include "engine/tail_exchange.h"

#include <algorithm>

namespace hvd {

namespace {

// What is under way at once. The first stage of as much as this has left its
// rank when the first is waited for. (8 MB and 4 advanced take 0.93 of the time
// over TCP without a link, and 1.08 of it at 5 Gbit.)
constexpr int64_t kStartedBytes = 64 * 1024 * 1024;

// What is folded of that before the first is finished: long enough that its
// second stage hides behind the first stage of others, which went before it.
constexpr int64_t kAdvancedBytes = 32 * 1024 * 1024;

// The same where waiting threads move messages: a wait hides nothing there, and
// what is folded is best passed on while caches have it (64 MB cost a fifth
// over shared memory).
constexpr int64_t kStartedAtHand = 4 * 1024 * 1024;
constexpr int64_t kAdvancedAtHand = 0;

// A tensor of so many times the cutoff takes long enough that one more short
// message to each rank does not show.
constexpr int64_t kCutoffs = 4;

} // namespace

LargeTrack::LargeTrack(
    Transport& transport,
    const Agreement& agreement,
    const Limits& limits)
    : transport_(transport),
      agreement_(agreement),
      limits_(limits),
      most_started_(
          transport.moves_by_itself() ? kStartedBytes : kStartedAtHand),
      most_advanced_(
          transport.moves_by_itself() ? kAdvancedBytes : kAdvancedAtHand) {}

Batch LargeTrack::next(uint64_t tail) {
  tail_ = tail;
  const int64_t bytes = queue.front().collective->bytes;
  if (!started.empty() && started_bytes_ + bytes > most_started_) {
    return {};
  }
  started_bytes_ += bytes;
  return cut({.size = 1, .agreed = 1, .framed = {}, .buckets = {}});
}

Rest LargeTrack::start(Batch& batch) {
  const Collective& collective = *batch.items[0].collective;
  batch.running.push_back(hvd::start(collective, transport_));
  if (tells_tail(collective)) {
    batch.running.push_back(
        std::make_unique<TailExchange>(collective, transport_, tail_, agreed_));
  }
  return Rest::Outputs;
}

bool LargeTrack::tells_tail(const Collective& collective) const {
  // Where waiting threads move messages, one after the other costs no time.
  return collective.signature.verb == Verb::Allreduce &&
      transport_.size() > 1 && transport_.moves_by_itself() &&
      collective.bytes / kCutoffs >= limits_.cutoff;
}

Batch* LargeTrack::to_advance() {
  if (advanced_ == started.size()) {
    return nullptr;
  }
  Batch& batch = started[advanced_];
  const Collective& collective = *batch.items[0].collective;
  const uint64_t agreed = std::max(agreement_.agreed(), agreed_.load());
  if (advanced_ > 0 &&
      (collective.seq >= agreed ||
       advanced_bytes_ + collective.bytes > most_advanced_)) {
    return nullptr;
  }
  ++advanced_;
  advanced_bytes_ += collective.bytes;
  return &batch;
}

void LargeTrack::advance(Batch& batch) {
  for (const auto& running : batch.running) {
    running->advance(batch.deadline);
  }
}

size_t LargeTrack::finish(Batch& batch) {
  for (const auto& running : batch.running) {
    running->finish(batch.deadline);
  }
  const int64_t bytes = batch.items[0].collective->bytes;
  --advanced_;
  advanced_bytes_ -= bytes;
  started_bytes_ -= bytes;
  batch.times.exchanged = Clock::now();
  return 1;
}

} // namespace hvd
