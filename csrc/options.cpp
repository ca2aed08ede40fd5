#include "options.h"

#include <algorithm>

namespace hvd {

Engine::Settings engine_settings(const Options& options, int size) {
  // Beside the latency of two stages, sending everything to everyone costs
  // (n - 1)(1 - 2 / n) times the tensor: nothing for two ranks, much for many.
  constexpr int64_t kLongestFrame = 64 * 1024;
  constexpr int64_t kFrameOfAllRanks = 256 * 1024;
  Engine::Settings settings;
  settings.limits.frame = std::min(kLongestFrame, kFrameOfAllRanks / size);
  settings.limits.cutoff = options.fusion_cutoff.value();
  settings.check = options.check.value();
  const auto duration = [](double seconds) {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(seconds));
  };
  settings.stall.log = duration(options.stall_check_time.value());
  settings.stall.end = duration(options.stall_shutdown_time.value());
  // Checked one at a time, a collective that is wrong spoils no other.
  settings.limits.fusion_threshold =
      settings.check ? 0 : options.fusion_threshold.value();
  return settings;
}

CompressionSettings compression_settings(const Options& options) {
  return {
      compression_named(options.compression.value()).value(),
      options.compression_min_bytes.value(),
      options.block,
      options.error_feedback};
}

} // namespace hvd
