#pragma once

#include "engine/engine.h"

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace hvd {

/// Every engine of the process, and what they have counted.
///
/// Threads: every member may be called from any thread.
class Registry {
 public:
  static Registry& instance();

  void add(const std::shared_ptr<Engine>& engine);

  /// What a new engine counts in; kept when the engine is gone.
  std::shared_ptr<Statistics> add_statistics(
      const std::string& group,
      const std::vector<double>& edges);

  /// Of every group that this process has made.
  std::vector<std::shared_ptr<Statistics>> statistics();

  /// The process ends: see Engine::end().
  void end_all();

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Engine>> engines_;
  /// Each with fork_depth() where it was made: a lock of the parent's may be
  /// held by a thread that the child lacks.
  std::vector<std::pair<int, std::shared_ptr<Statistics>>> statistics_;
};

} // namespace hvd
