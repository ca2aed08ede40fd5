#include "transport/shm/arena.h"

#include <algorithm>
#include <iterator>

namespace hvd::shm {

std::optional<int64_t> Arena::take(int64_t bytes) {
  constexpr int64_t kLine = 64;
  const int64_t wanted = (bytes + kLine - 1) / kLine * kLine;
  const auto piece = std::ranges::find_if(
      free_, [&](const auto& entry) { return entry.second >= wanted; });
  if (piece == free_.end()) {
    return std::nullopt;
  }
  const auto [offset, length] = *piece;
  free_.erase(piece);
  if (length > wanted) {
    free_[offset + wanted] = length - wanted;
  }
  taken_[offset] = wanted;
  free_bytes_ -= wanted;
  return offset;
}

void Arena::give_back(int64_t offset) {
  const auto taken = taken_.find(offset);
  int64_t begin = offset;
  int64_t end = offset + taken->second;
  free_bytes_ += taken->second;
  taken_.erase(taken);
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      begin = before->first;
      free_.erase(before);
    }
  }
  if (after != free_.end() && after->first == end) {
    end += after->second;
    free_.erase(after);
  }
  free_[begin] = end - begin;
}

} // namespace hvd::shm
