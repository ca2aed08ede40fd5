#pragma once

#include "common/collective.h"

#include <optional>

namespace hvd {

/// What a group compresses, and how. Alike on all its ranks.
struct CompressionSettings {
  Compression compression = Compression::None;
  int64_t min_bytes = 0; ///< of a tensor, below which it is left as it is
  std::optional<int32_t> block; ///< see Codec; unset: what suits it
  std::optional<bool> error_feedback; ///< unset: where it is needed
};

/// The compression with its parameters.
Codec make_codec(Compression compression, const CompressionSettings& settings);

/// The codec that a collective of a group of `size` ranks travels with: the
/// chosen one for a large all_reduce of floating point with SUM, PREMUL_SUM or
/// AVG that gets smaller by it, else none. Called by the thread that calls the
/// collective.
Codec codec_for(
    const Signature& signature,
    const CompressionSettings& settings,
    int size);

/// What takes the place of every group's compression from now on for what this
/// thread calls, or torch on another thread for it, if anything.
void override_compression(std::optional<Compression> compression);
std::optional<Compression> overriding_compression();

} // namespace hvd
