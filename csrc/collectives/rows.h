#pragma once

#include "collectives/frame_steps.h"
#include "transport/transport.h"

#include <cstddef>
#include <vector>

namespace hvd {

/// All-to-all of short rows of one length: every rank gives one and gets
/// everyone's, by the steps of frame_steps(). A round is post(), then
/// collect(). Rounds are told apart by their lanes, so that there may be
/// several RowExchanges. Not thread-safe.
class RowExchange {
 public:
  /// `bytes`: in a row.
  RowExchange(Transport& transport, int64_t bytes);

  /// Sends this rank's row.
  void post(const void* row, const Lane& lane);

  /// Waits for the round, and passes on what others are to get from this rank;
  /// returns the row of each rank, this one's included, valid until the next
  /// post().
  std::vector<const std::byte*> collect(Deadline deadline);

 private:
  struct Step {
    std::vector<Transfer> sends;
    std::vector<Transfer> receives;
  };

  void start(size_t step);

  Transport& transport_;
  const int64_t bytes_; ///< in a row
  const at::Tensor rows_; ///< as they come, this rank's first
  std::vector<int> ranks_; ///< whose they are
  std::vector<Step> steps_;
  Lane lane_{}; ///< of the round
  RequestPtr step_; ///< the one under way
};

} // namespace hvd
