#pragma once

#include "collectives/running.h"

#include <atomic>
#include <cstdint>

namespace hvd {

/// Beside a large all_reduce, which needs every rank anyway, the ranks tell
/// each other how many collectives they have ready: frames do so only where
/// small ones are called, too.
class TailExchange final : public Running {
 public:
  /// `tail`: of this rank, see FrameHeader; told as it is when the collective
  /// advances. `agreed` is raised to the least of all ranks.
  TailExchange(
      const Collective& collective,
      Transport& transport,
      const std::atomic<uint64_t>& tail,
      std::atomic<uint64_t>& agreed);

  void advance(Deadline deadline) override;
  void finish(Deadline deadline) override;

 private:
  Transport& transport_;
  const Lane lane_;
  const std::atomic<uint64_t>& tail_;
  std::atomic<uint64_t>& agreed_;
  const at::Tensor tails_; ///< one number of each rank
  RequestPtr arrival_;
  RequestPtr departure_;
};

} // namespace hvd
