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

/// Makes a plan of one part of the queue after the other.
class Planner {
 public:
  Planner(const std::vector<const Collective*>& ready, const Limits& limits)
      : ready_(ready), limits_(limits) {}

  Plan make(size_t agreed) {
    const bool all_fit = take(agreed);
    plan_.agreed = plan_.size;
    if (all_fit) {
      take(ready_.size());
    }
    return std::move(plan_);
  }

 private:
  /// Takes the next ones up to `end`; returns whether all of them fit. Those
  /// that can be fused go the same way: into the frame if it has room for them,
  /// or else into buckets.
  bool take(size_t end) {
    const size_t begin = plan_.size;
    Sizes part;
    for (; plan_.size < end; ++plan_.size) {
      const Sizes then = with(part, *ready_[plan_.size]);
      if (plan_.size > 0 && !fits(then)) {
        break;
      }
      part = then;
    }
    total_ += part.total();
    const bool frame_takes_all =
        frame_ + part.fusible + part.other <= limits_.frame;
    for (size_t place = begin; place < plan_.size; ++place) {
      const Collective& member = *ready_[place];
      // What is compressed is so wherever it travels, or it would depend on
      // what else is ready whether it is.
      if (is_small(member, limits_) && !is_compressed(member) &&
          (frame_takes_all || !is_fusible(member))) {
        plan_.framed.push_back({place, frame_});
        frame_ += framed_bytes(member);
      } else {
        put_in_bucket(place);
      }
    }
    return plan_.size == end;
  }

  bool fits(const Sizes& part) const {
    return limits_.fusion_threshold > 0 &&
        total_ + part.total() <= limits_.fusion_threshold &&
        frame_ + part.other <= limits_.frame;
  }

  void put_in_bucket(size_t place) {
    const auto bucket = std::find_if(
        plan_.buckets.begin(), plan_.buckets.end(), [&](const auto& members) {
          return fuse_alike(*ready_[members[0]], *ready_[place]);
        });
    if (bucket != plan_.buckets.end()) {
      bucket->push_back(place);
    } else {
      plan_.buckets.push_back({place});
    }
  }

  const std::vector<const Collective*>& ready_;
  const Limits& limits_;
  Plan plan_;
  int64_t total_ = 0; ///< framed bytes of all members
  int64_t frame_ = 0; ///< bytes taken of the frame
};

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

Plan plan(
    const std::vector<const Collective*>& ready,
    size_t agreed,
    const Limits& limits) {
  return Planner(ready, limits).make(agreed);
}

} // namespace hvd
