#pragma once

#include "collectives/frames.h"
#include "engine/agreement.h"
#include "engine/plan.h"
#include "engine/statistics.h"
#include "engine/track.h"

#include <optional>

namespace hvd {

/// Small collectives: as many as the ranks have agreed on travel in one frame,
/// and what does not fit it in buckets behind it. One frame is under way at a
/// time; what is submitted meanwhile makes the next one.
class FrameTrack final : public Track {
 public:
  FrameTrack(
      Transport& transport,
      Agreement& agreement,
      Statistics& statistics,
      const Limits& limits)
      : transport_(transport),
        agreement_(agreement),
        statistics_(statistics),
        limits_(limits) {}

  Batch next(uint64_t tail) override;
  Rest start(Batch& batch) override;
  size_t finish(Batch& batch) override;

 private:
  void run_buckets(Batch& batch);

  Transport& transport_;
  Agreement& agreement_; ///< guarded by the engine's lock, but for check()
  Statistics& statistics_;
  const Limits limits_;
  std::optional<FrameLane> frames_; ///< made for the first frame
  at::Tensor fusion_buffer_; ///< bytes; grows to need and is used again
};

} // namespace hvd
