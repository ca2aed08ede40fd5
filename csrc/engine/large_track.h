#pragma once

#include "engine/agreement.h"
#include "engine/track.h"

namespace hvd {

/// Large collectives: each travels by itself and in place. A batch is what may
/// be waited for together, because it is known to be ready on every rank; ranks
/// need not cut it alike. Two batches under way hide the gap between them.
class LargeTrack final : public Track {
 public:
  /// `agreement`: read only.
  LargeTrack(Transport& transport, const Agreement& agreement)
      : transport_(transport), agreement_(agreement) {}

  Batch next(uint64_t tail) override;
  Rest start(Batch& batch) override;
  bool finish(Batch& batch) override;

 private:
  Transport& transport_;
  const Agreement& agreement_;
};

} // namespace hvd
