#include "engine/plan.h"

#include "collectives/contribution.h"

#include <algorithm>

namespace hvd {

namespace {

bool is_fusible(const Collective& collective) {
  return collective.signature.verb == Verb::Allreduce;
}

/// In a frame, with every contribution aligned for the widest element.
int64_t framed_bytes(const Collective& collective) {
  constexpr int64_t kAlignment = 16;
  const int64_t bytes = contribution_bytes(collective);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Framed bytes of the members of a batch.
struct Sizes {
  int64_t compressed = 0; ///< always in buckets
  int64_t fusible = 0; ///< in the frame or in buckets
  int64_t other = 0; ///< always in the frame

  int64_t total() const {
    return compressed + fusible + other;
  }
};

Sizes with(Sizes sizes, const Collective& member) {
  int64_t& size = is_compressed(member) ? sizes.compressed
      : is_fusible(member)              ? sizes.fusible
                                        : sizes.other;
  size += framed_bytes(member);
  return sizes;
}

bool fuse_alike(const Collective& a, const Collective& b) {
  return a.signature.dtype == b.signature.dtype &&
      a.signature.op == b.signature.op &&
      a.signature.codec == b.signature.codec;
}

} // namespace

bool is_small(const Collective& collective, const Limits& limits) {
  if (collective.signature.codec.error_feedback) {
    return false; // what is lost of it is kept for it alone
  }
  const int64_t bytes = contribution_bytes(collective);
  const int64_t limit = is_fusible(collective)
      ? std::max(limits.cutoff, limits.frame)
      : limits.frame;
  return bytes >= 0 && bytes <= limit;
}

Plan plan(const std::vector<const Collective*>& ready, const Limits& limits) {
  Plan plan;
  Sizes sizes;
  for (const Collective* next : ready) {
    const Sizes then = with(sizes, *next);
    const bool fits = limits.fusion_threshold > 0 &&
        then.total() <= limits.fusion_threshold && then.other <= limits.frame;
    if (plan.size > 0 && !fits) {
      break;
    }
    ++plan.size;
    sizes = then;
  }
  const bool frame_takes_all = is_small(*ready[0], limits) &&
      sizes.fusible + sizes.other <= limits.frame;
  int64_t offset = 0;
  for (size_t place = 0; place < plan.size; ++place) {
    const Collective& member = *ready[place];
    // What is compressed is so wherever it travels, or it would depend on what
    // else is ready whether it is.
    if (!is_compressed(member) &&
        (frame_takes_all || (plan.size > 1 && !is_fusible(member)))) {
      plan.framed.push_back({place, offset});
      offset += framed_bytes(member);
      continue;
    }
    const auto bucket = std::find_if(
        plan.buckets.begin(), plan.buckets.end(), [&](const auto& members) {
          return fuse_alike(*ready[members[0]], member);
        });
    if (bucket != plan.buckets.end()) {
      bucket->push_back(place);
    } else {
      plan.buckets.push_back({place});
    }
  }
  return plan;
}

} // namespace hvd
