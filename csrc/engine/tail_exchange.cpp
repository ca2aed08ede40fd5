#include "engine/tail_exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

namespace hvd {

namespace {

/// Not that of the collective, of which some message may be as short.
Lane lane_beside(const Collective& collective) {
  constexpr uint64_t kOther = 0x9e3779b97f4a7c15;
  Lane lane = first_lane(collective);
  lane.fingerprint ^= kOther;
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
      agreed_(agreed) {
  std::vector<Transfer> receives;
  for (int peer = 0; peer < transport.size(); ++peer) {
    tails_.push_back(at::empty({1}, at::kLong));
    if (peer != transport.rank()) {
      receives.push_back({peer, tails_.back()});
    }
  }
  arrival_ = transport.exchange({}, receives, lane_);
}

void TailExchange::advance(Deadline /*deadline*/) {
  const auto& own = tails_[transport_.rank()];
  own.mutable_data_ptr<int64_t>()[0] = static_cast<int64_t>(tail_.load());
  std::vector<Transfer> sends;
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer != transport_.rank()) {
      sends.push_back({peer, own});
    }
  }
  departure_ = transport_.exchange(sends, {}, lane_);
}

void TailExchange::finish(Deadline deadline) {
  arrival_->wait(deadline);
  departure_->wait(deadline);
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& tail : tails_) {
    least = std::min(least, tail.const_data_ptr<int64_t>()[0]);
  }
  agreed_ = std::max(agreed_.load(), static_cast<uint64_t>(least));
}

} // namespace hvd
