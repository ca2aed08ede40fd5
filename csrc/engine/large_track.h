#pragma once

#include "engine/track.h"

namespace hvd {

/// Large collectives: each travels alone and in place, two at a time, which
/// hides the gaps between them.
class LargeTrack final : public Track {
 public:
  explicit LargeTrack(Transport& transport) : transport_(transport) {}

  Batch next(uint64_t tail) override;
  void start(Batch& batch) override;
  bool finish(Batch& batch) override;

 private:
  Transport& transport_;
};

} // namespace hvd
