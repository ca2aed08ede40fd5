#include "common/hosts.h"

#include <algorithm>
#include <map>

namespace hvd {

Hosts::Hosts(const std::vector<int>& names) {
  std::map<int, int> numbers; // of the hosts, by name
  for (const int name : names) {
    const auto [entry, is_new] = numbers.try_emplace(name, count());
    if (is_new) {
      ranks_.emplace_back();
    }
    auto& ranks = ranks_[entry->second];
    spots_.push_back({entry->second, static_cast<int>(ranks.size())});
    ranks.push_back(static_cast<int>(spots_.size()) - 1);
  }
}

int Hosts::fewest() const {
  size_t fewest = spots_.size();
  for (const auto& ranks : ranks_) {
    fewest = std::min(fewest, ranks.size());
  }
  return static_cast<int>(fewest);
}

std::vector<int> Hosts::ranks_in(int place) const {
  std::vector<int> result;
  for (const auto& ranks : ranks_) {
    result.push_back(ranks[place % ranks.size()]);
  }
  return result;
}

} // namespace hvd
