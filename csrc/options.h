#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "codec/choice.h"
#include "engine/engine.h"

#include <optional>
#include <string>

namespace hvd {

/// What `pg_options=torch_hvd.Options(...)` sets for one process group.
struct Options : c10d::Backend::Options {
  explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
      : c10d::Backend::Options("hvd", timeout) {}

  // Overrides Backend::Options::clone, which torch has from 2.14 on.
  c10::intrusive_ptr<c10d::Backend::Options> clone() const {
    return c10::make_intrusive<Options>(*this);
  }

  /// "auto", or the name of the one transport to use.
  std::optional<std::string> transport;

  // Python gives a value to what is unset, from the environment. The same on
  // every rank.
  std::optional<int64_t> fusion_threshold; ///< bytes, see Limits
  std::optional<int64_t> fusion_cutoff; ///< bytes, see Limits
  std::optional<bool> check; ///< see Engine::Settings
  // See CompressionSettings.
  std::optional<std::string> compression;
  std::optional<int64_t> compression_min_bytes;
  std::optional<int32_t> block;
  std::optional<bool> error_feedback;

  // These may differ from rank to rank. In seconds.
  std::optional<double> stall_check_time;
  std::optional<double> stall_shutdown_time;
};

/// What they mean for the engine of a group of `size` ranks, and for the choice
/// of a codec.
Engine::Settings engine_settings(const Options& options, int size);
CompressionSettings compression_settings(const Options& options);

} // namespace hvd
