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

bool fuse_alike(const Collective& a, const Collective& b) {
  return a.signature.dtype == b.signature.dtype &&
      a.signature.op == b.signature.op;
}

} // namespace

bool is_small(const Collective& collective, const Limits& limits) {
  const int64_t bytes = contribution_bytes(collective);
  const int64_t limit = is_fusible(collective)
      ? std::max(limits.cutoff, limits.frame)
      : limits.frame;
  return bytes >= 0 && bytes <= limit;
}

Plan plan(const std::vector<const Collective*>& ready, const Limits& limits) {
  Plan plan;
  int64_t fusible = 0;
  int64_t other = 0; // what no bucket can take off the frame
  for (const Collective* next : ready) {
    const int64_t bytes = framed_bytes(*next);
    const int64_t fusible_then = fusible + (is_fusible(*next) ? bytes : 0);
    const int64_t other_then = other + (is_fusible(*next) ? 0 : bytes);
    const bool fits = limits.fusion_threshold > 0 &&
        fusible_then + other_then <= limits.fusion_threshold &&
        other_then <= limits.frame;
    if (plan.size > 0 && !fits) {
      break;
    }
    ++plan.size;
    fusible = fusible_then;
    other = other_then;
  }
  const bool frame_takes_all =
      is_small(*ready[0], limits) && fusible + other <= limits.frame;
  int64_t offset = 0;
  for (size_t place = 0; place < plan.size; ++place) {
    const Collective& member = *ready[place];
    if (frame_takes_all || (plan.size > 1 && !is_fusible(member))) {
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
