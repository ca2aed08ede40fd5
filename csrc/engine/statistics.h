#pragma once

#include "engine/waiting_time.h"
#include "transport/transport.h"

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace hvd {

inline double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// What was sent at once: a frame with its buckets, or a large collective.
struct Response {
  int64_t bytes = 0; ///< of the tensors
  size_t tensors = 0;
  double seconds = 0; ///< from start to outputs
  bool framed = false;
};

/// Counts what a group sends. Times are in seconds.
///
/// Threads: every member may be called from any thread.
class Statistics {
 public:
  /// Responses of up to `upto` bytes, and more than those of the row before.
  struct Row {
    double upto = 0;
    uint64_t count = 0;
    uint64_t tensors = 0;
    double bytes = 0;
    double seconds = 0;
    double rates = 0; ///< sum over the responses of bytes / seconds
  };
  struct Totals {
    uint64_t frames = 0; ///< all-to-all rounds of small messages
    uint64_t responses = 0;
    uint64_t tensors = 0;
    double tensor_bytes = 0;
    uint64_t messages = 0; ///< the user's, sent or to be received
    Sent sent; ///< by this rank, messages too
    double fusion_buffer_bytes = 0; ///< the most it has been
    double elapsed = 0; ///< since the group was made
    double waiting = 0; ///< see WaitingTime
  };

  /// `edges`: upper ends of the rows, in bytes, rising; a last row has no end.
  Statistics(std::string group, const std::vector<double>& edges);

  /// Asks `transport` what was sent whenever somebody wants to know; null: from
  /// now on there is none.
  void follow(const Transport* transport);

  void add(const Response& response);
  void add_message();
  void grow_fusion_buffer(int64_t bytes);

  const std::string& group() const {
    return group_;
  }
  WaitingTime& waiting() {
    return waiting_;
  }
  std::vector<Row> rows();
  Totals totals();

 private:
  const std::string group_;
  const Deadline born_ = Clock::now();
  WaitingTime waiting_;
  std::mutex mutex_;
  std::vector<Row> rows_;
  Totals totals_;
  const Transport* transport_ = nullptr;
};

} // namespace hvd
