#include "engine/memory_in_use.h"

#include <algorithm>
#include <iterator>

namespace hvd {

// Reads count like writes: two readers of the same memory are rare, and only
// lose some speed.
std::vector<MemoryInUse::Span> MemoryInUse::spans(
    const Collective& collective) {
  std::vector<Span> spans;
  spans.reserve(
      collective.inputs.size() + collective.outputs.size() +
      collective.copy_in.size() + collective.copy_back.size());
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.is_sparse()) { // its memory is replaced, not written
      const auto at = reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl());
      spans.emplace_back(at, at + 1);
      return;
    }
    if (tensor.numel() == 0) {
      return;
    }
    int64_t elements = 1;
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      elements += (tensor.size(dim) - 1) * tensor.stride(dim);
    }
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    spans.emplace_back(begin, begin + elements * tensor.element_size());
  };
  for (const auto* list : {&collective.inputs, &collective.outputs}) {
    std::for_each(list->begin(), list->end(), add);
  }
  for (const auto& copied : collective.copy_in) {
    add(copied.from);
    if (copied.factor.defined()) {
      add(copied.factor);
    }
  }
  for (const auto& [to, from] : collective.copy_back) {
    add(to);
  }
  // In place, or as pieces of one tensor, a collective may meet itself.
  std::sort(spans.begin(), spans.end());
  size_t merged = 0;
  for (const auto& span : spans) {
    if (merged > 0 && span.first < spans[merged - 1].second) {
      auto& end = spans[merged - 1].second;
      end = std::max(end, span.second);
    } else {
      spans[merged++] = span;
    }
  }
  spans.resize(merged);
  return spans;
}

bool MemoryInUse::take(Collective& collective) {
  auto wanted = spans(collective);
  const bool free =
      std::all_of(wanted.begin(), wanted.end(), [&](const Span& span) {
        const auto behind = taken_.lower_bound(span.first);
        return (behind == taken_.end() || behind->first >= span.second) &&
            (behind == taken_.begin() ||
             std::prev(behind)->second <= span.first);
      });
  if (free) {
    taken_.insert(wanted.begin(), wanted.end());
    collective.memory = std::move(wanted);
  }
  return free;
}

void MemoryInUse::give_back(const Collective& collective) {
  for (const auto& span : collective.memory) {
    taken_.erase(span.first);
  }
}

} // namespace hvd
