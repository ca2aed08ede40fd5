#pragma once

#include "engine/agreement.h"
#include "engine/plan.h"
#include "engine/track.h"

#include <atomic>
#include <cstdint>

namespace hvd {

/// Large collectives: each travels by itself and in place, many at once. Those
/// that are known to be ready on every rank advance before the first of them is
/// finished; ranks need not know of the same ones.
class LargeTrack final : public Track {
 public:
  /// `agreement`: read only.
  LargeTrack(
      Transport& transport,
      const Agreement& agreement,
      const Limits& limits);

  Batch next(uint64_t tail) override;
  Rest start(Batch& batch) override;
  Batch* to_advance() override;
  void advance(Batch& batch) override;
  size_t finish(Batch& batch) override;

 private:
  bool tells_tail(const Collective& collective) const;

  Transport& transport_;
  const Agreement& agreement_;
  const Limits limits_;
  const int64_t most_started_; ///< bytes at a time
  const int64_t most_advanced_; ///< bytes that are not finished
  std::atomic<uint64_t> tail_{0}; ///< when next() was last asked
  /// See Agreement::agreed(); from what ranks tell each other on this track.
  std::atomic<uint64_t> agreed_{0};
  std::atomic<int64_t> started_bytes_{0}; ///< and not finished
  // For who finishes.
  size_t advanced_ = 0; ///< of those that are started, the first ones
  int64_t advanced_bytes_ = 0; ///< of these
};

} // namespace hvd
