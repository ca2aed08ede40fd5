#pragma once

#include "common/collective.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd {

/// Sizes in bytes. Alike on all ranks of a group.
struct Limits {
  /// The longest frame payload, which is sent whole to everyone.
  int64_t frame = 0;
  /// An all_reduce up to here is fused with others, a longer one travels alone.
  int64_t cutoff = 0;
  /// The most that one batch fuses; 0 makes every collective travel alone.
  int64_t fusion_threshold = 0;
};

/// How the first collectives of a queue travel together. Members are named by
/// their place in the queue.
///
/// Those that the ranks have not agreed on are there in case all have the same
/// ready. If not they are left out, which changes nothing for the others but
/// the buckets.
struct Plan {
  /// A contribution that the frame carries.
  struct Framed {
    size_t member;
    int64_t offset; ///< bytes into the frame's payload, alike on all ranks
  };

  size_t size = 0; ///< members of the batch
  size_t agreed = 0; ///< the first of them, which the ranks have agreed on
  std::vector<Framed> framed;
  /// What follows the frame: all_reduces of one dtype and op packed into one,
  /// or a single collective as it is.
  std::vector<std::vector<size_t>> buckets;
};

/// Whether a collective travels in a frame or in a bucket.
bool is_small(const Collective& collective, const Limits& limits);

/// A pure function of the signatures, so all ranks cut the same batches.
/// `ready`: not empty; of more than one, all are small. `agreed`: the first of
/// them, at least one, that all ranks have ready. At least the first makes the
/// batch, whatever its size.
Plan plan(
    const std::vector<const Collective*>& ready,
    size_t agreed,
    const Limits& limits);

} // namespace hvd
