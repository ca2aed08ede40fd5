#include "common/rank_names.h"

#include <map>
#include <sstream>

namespace hvd {

std::string name_ranks(const std::vector<int>& ranks) {
  std::ostringstream out;
  out << (ranks.size() == 1 ? "rank " : "ranks ");
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    out << (first == 0 ? "" : ",") << ranks[first];
    if (last > first) {
      out << '-' << ranks[last];
    }
    first = last + 1;
  }
  return out.str();
}

std::string by_rank(
    const std::vector<std::string>& clauses,
    const char* separator) {
  std::map<std::string, std::vector<int>> ranks;
  for (size_t rank = 0; rank < clauses.size(); ++rank) {
    ranks[clauses[rank]].push_back(static_cast<int>(rank));
  }
  std::string text;
  for (size_t rank = 0; rank < clauses.size(); ++rank) {
    const auto& clause = clauses[rank];
    const auto& alike = ranks[clause];
    if (!clause.empty() && alike.front() == static_cast<int>(rank)) {
      text += (text.empty() ? "" : separator) + name_ranks(alike) + clause;
    }
  }
  return text;
}

} // namespace hvd
