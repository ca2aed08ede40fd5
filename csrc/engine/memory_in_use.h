#pragma once

#include "common/collective.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace hvd {

/// The memory of the collectives under way. One that shares memory with an
/// earlier one has to wait for it, so that a program which issues both without
/// a wait between them gets what it would get one after the other.
///
/// Not thread-safe.
class MemoryInUse {
 public:
  /// Takes the collective's memory, which is noted in it; returns false, and
  /// takes nothing, if some of it is taken.
  bool take(Collective& collective);

  /// Gives back what take() took, wherever the tensors are now.
  void give_back(const Collective& collective);

 private:
  using Span = std::pair<uintptr_t, uintptr_t>; ///< begin, end

  static std::vector<Span> spans(const Collective& collective);

  std::map<uintptr_t, uintptr_t> taken_; ///< begin -> end, disjoint
};

} // namespace hvd
