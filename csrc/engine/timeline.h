#pragma once

#include "common/collective.h"
#include "common/fork.h"
#include "transport/transport.h"

#include <atomic>
#include <cstdint>
#include <fstream>
#include <mutex>
#include <string>

namespace hvd {

/// When a collective came to each of its stages.
struct Times {
  Deadline submitted; ///< by the caller
  Deadline started; ///< taken from the queue
  Deadline packed; ///< its first messages are on the way
  Deadline exchanged; ///< everything has arrived
  Deadline finished; ///< the outputs are there
  uint64_t batch = 0; ///< number of the batch it travelled in
};

/// The timeline of this process, of all its groups: a file in Chrome's trace
/// format, written as collectives complete.
///
/// Threads: every member may be called from any thread.
class Timeline {
 public:
  static Timeline& instance();

  /// Writes to `path` from now on. `rank`: the process in the picture. `run`:
  /// what files that belong together have in common. Throws if the file cannot
  /// be written.
  void start(const std::string& path, int rank, const std::string& run);

  /// Ends the file; throws if not all of it could be written. Does nothing if
  /// none is open.
  void stop();

  /// Not in a child that was forked: the file is its parent's.
  bool is_on() const {
    return on_ && fork_depth() == fork_depth_;
  }

  /// For the next write(), a collective that is complete at this moment.
  void add(
      const std::string& group,
      const char* transport,
      const Collective& collective,
      const Times& times);

  /// Likewise one of the user's messages.
  void add_message(
      const std::string& group,
      const char* transport,
      const std::string& name,
      int64_t bytes,
      Deadline submitted);

  /// Writes what was added. Does nothing if it is not on.
  void write();

 private:
  std::atomic<bool> on_{false};
  std::atomic<int> fork_depth_{0}; ///< where it was started
  std::mutex mutex_; ///< guards all below
  std::ofstream file_;
  std::string path_; ///< of the file
  std::string page_; ///< to be written
  uint64_t messages_ = 0;
  int rank_ = 0;
};

} // namespace hvd
