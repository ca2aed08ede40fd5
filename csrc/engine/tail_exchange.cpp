#include "engine/tail_exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace hvd {

namespace {

/// Not that of the collective, of which some message may be as short.
Lane lane_beside(const Collective& collective) {
  Lane lane = first_lane(collective);
  lane.fingerprint = ~lane.fingerprint;
  return lane;
}

} // namespace

TailExchange::TailExchange(
    const Collective& collective,
    Transport& transport,
    const std::atomic<uint64_t>& tail,
    std::atomic<uint64_t>& agreed)
    : transport_(transport),
      lane_(lane_beside(collective)),
      tail_(tail),
      agreed_(agreed),
      tails_(at::empty({transport.size(), 1}, at::kLong)),
      arrival_(transport.exchange({}, from_all(transport, tails_), lane_)) {}

void TailExchange::advance(Deadline /*deadline*/) {
  const auto own = tails_[transport_.rank()];
  *own.mutable_data_ptr<int64_t>() = static_cast<int64_t>(tail_.load());
  departure_ = transport_.exchange(to_all(transport_, own), {}, lane_);
}

void TailExchange::finish(Deadline deadline) {
  arrival_->wait(deadline);
  departure_->wait(deadline);
  const auto* const tails = tails_.const_data_ptr<int64_t>();
  const auto least = std::min_element(tails, tails + tails_.numel());
  agreed_ = std::max(agreed_.load(), static_cast<uint64_t>(*least));
}

} // namespace hvd
