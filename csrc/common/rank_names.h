#pragma once

#include <string>
#include <vector>

namespace hvd {

/// As in "rank 3" and "ranks 0,2-5". `ranks`: in rising order, not empty.
std::string name_ranks(const std::vector<int>& ranks);

/// What is said of each rank, as "rank 0 called this, ranks 1-3 called that":
/// ranks of which the same is said together, in the order of the first. Nothing
/// of a rank with an empty clause.
std::string by_rank(
    const std::vector<std::string>& clauses,
    const char* separator);

} // namespace hvd
