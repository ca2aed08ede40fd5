#pragma once

#include <vector>

namespace hvd {

/// Which ranks of a group share a host. Hosts are numbered in the order of
/// their first ranks, and ranks have places on their host in rank order.
class Hosts {
 public:
  /// Where nothing is known, or it makes no difference.
  Hosts() = default;

  /// `names`: by rank, equal for ranks on one host.
  explicit Hosts(const std::vector<int>& names);

  int count() const {
    return static_cast<int>(ranks_.size());
  }
  const std::vector<int>& ranks_on(int host) const {
    return ranks_[host];
  }
  int host_of(int rank) const {
    return spots_[rank].host;
  }
  int place_of(int rank) const {
    return spots_[rank].place;
  }

  /// Whether the ranks of a host are closer to each other than to some others.
  bool have_levels() const {
    return count() > 1 && ranks_.size() < spots_.size();
  }

  /// Ranks on the host that has the fewest.
  int fewest() const;

  /// The ranks in this place on each host, in the order of hosts; places begin
  /// anew where a host has fewer.
  std::vector<int> ranks_in(int place) const;

 private:
  struct Spot {
    int host;
    int place;
  };

  std::vector<std::vector<int>> ranks_; ///< by host
  std::vector<Spot> spots_; ///< by rank
};

} // namespace hvd
