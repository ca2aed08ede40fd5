#include "collectives/frame_steps.h"

#include <algorithm>
#include <numeric>

namespace hvd {

namespace {

// As measured with 8 to 64 ranks on two cores; see docs/design.md.
constexpr int kMany = 16;
constexpr int kRadix = 4;

/// Members of a ring, each of whom has frames that all are to get.
struct Ring {
  std::vector<int> members; ///< ranks
  std::vector<std::vector<int>> had; ///< by member: whose frames it has

  /// Whose frames so many members have, from one on.
  std::vector<int> had_from(size_t first, size_t count) const {
    std::vector<int> ranks;
    for (size_t i = 0; i < count; ++i) {
      const auto& more = had[(first + i) % had.size()];
      ranks.insert(ranks.end(), more.begin(), more.end());
    }
    return ranks;
  }
};

/// Adds the steps of the member at `place`.
void go_round(std::vector<FrameStep>& steps, const Ring& ring, size_t place) {
  const size_t count = ring.members.size();
  const size_t radix = count < kMany ? count : kRadix;
  for (size_t distance = 1; distance < count; distance *= radix) {
    auto& [sends, receives] = steps.emplace_back();
    for (size_t hops = distance; hops < std::min(count, radix * distance);
         hops += distance) {
      const size_t wanted = std::min(distance, count - hops);
      sends.push_back(
          {ring.members[(place + count - hops) % count],
           ring.had_from(place, wanted).size()});
      receives.push_back(
          {ring.members[(place + hops) % count],
           ring.had_from(place + hops, wanted)});
    }
  }
}

/// Those of other hosts who give this one their frames, which it passes on.
std::vector<int> givers(const Hosts& hosts, int taker) {
  const int here = hosts.host_of(taker);
  std::vector<int> ranks;
  for (int hops = 1; hops < hosts.count(); ++hops) {
    for (const int giver : hosts.ranks_on((here + hops) % hosts.count())) {
      if (hosts.ranks_in(hosts.place_of(giver))[here] == taker) {
        ranks.push_back(giver);
      }
    }
  }
  return ranks;
}

/// Between hosts that have different numbers of ranks.
FrameStep give(const Hosts& hosts, int rank) {
  FrameStep step;
  for (const int taker : hosts.ranks_in(hosts.place_of(rank))) {
    if (hosts.host_of(taker) != hosts.host_of(rank)) {
      step.sends.push_back({taker, 1});
    }
  }
  for (const int giver : givers(hosts, rank)) {
    step.receives.push_back({giver, {giver}});
  }
  return step;
}

bool are_even(const Hosts& hosts) {
  const int fewest = hosts.fewest();
  const auto has_fewest = [&](int rank) {
    const auto& ranks = hosts.ranks_on(hosts.host_of(rank));
    return static_cast<int>(ranks.size()) == fewest;
  };
  return std::ranges::all_of(hosts.ranks_in(0), has_fewest);
}

} // namespace

std::vector<FrameStep> frame_steps(const Hosts& hosts, int rank) {
  std::vector<FrameStep> steps;
  if (are_even(hosts)) {
    Ring between{hosts.ranks_in(hosts.place_of(rank)), {}};
    for (const int member : between.members) {
      between.had.push_back({member});
    }
    go_round(steps, between, hosts.host_of(rank));
  } else {
    steps.push_back(give(hosts, rank));
  }
  Ring inside{hosts.ranks_on(hosts.host_of(rank)), {}};
  for (const int member : inside.members) {
    auto& had = inside.had.emplace_back(givers(hosts, member));
    had.insert(had.begin(), member);
  }
  go_round(steps, inside, hosts.place_of(rank));
  return steps;
}

std::vector<FrameStep> frame_steps(const Transport& transport) {
  if (transport.hosts().have_levels()) {
    return frame_steps(transport.hosts(), transport.rank());
  }
  std::vector<int> names(transport.size());
  std::iota(names.begin(), names.end(), 0);
  return frame_steps(Hosts(names), transport.rank());
}

} // namespace hvd
