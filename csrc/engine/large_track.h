#pragma once

#include "engine/agreement.h"
#include "engine/plan.h"
#include "engine/track.h"

#include <atomic>
#include <cstdint>

namespace hvd {

/// Large collectives: each travels by itself and in place. A batch is what may
/// be waited for together, because it is known to be ready on every rank; ranks
/// need not cut it alike. Two batches under way hide the gap between them.
class LargeTrack final : public Track {
 public:
  /// `agreement`: read only.
  LargeTrack(
      Transport& transport,
      const Agreement& agreement,
      const Limits& limits)
      : transport_(transport), agreement_(agreement), limits_(limits) {}

  Batch next(uint64_t tail) override;
  Rest start(Batch& batch) override;
  bool finish(Batch& batch) override;

 private:
  bool tells_tail(const Collective& collective) const;

  Transport& transport_;
  const Agreement& agreement_;
  const Limits limits_;
  std::atomic<uint64_t> tail_{0}; ///< when next() was last asked
  /// See Agreement::agreed(); from what ranks tell each other on this track.
  std::atomic<uint64_t> agreed_{0};
};

} // namespace hvd
