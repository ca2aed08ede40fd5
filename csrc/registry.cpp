#include "registry.h"

#include "common/fork.h"

namespace hvd {

Registry& Registry::instance() {
  // Never destroyed: groups may outlive static destructors.
  static Registry& registry = *std::make_unique<Registry>().release();
  return registry;
}

void Registry::add(const std::shared_ptr<Engine>& engine) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(engines_, [](const auto& each) { return each.expired(); });
  engines_.push_back(engine);
}

std::shared_ptr<Statistics> Registry::add_statistics(
    const std::string& group,
    const std::vector<double>& edges) {
  std::lock_guard<std::mutex> lock(mutex_);
  return statistics_
      .emplace_back(fork_depth(), std::make_shared<Statistics>(group, edges))
      .second;
}

std::vector<std::shared_ptr<Statistics>> Registry::statistics() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<Statistics>> own;
  for (const auto& [depth, statistics] : statistics_) {
    if (depth == fork_depth()) {
      own.push_back(statistics);
    }
  }
  return own;
}

void Registry::end_all() {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto engines = engines_;
  lock.unlock();
  for (const auto& weak : engines) {
    if (const auto engine = weak.lock()) {
      engine->end();
    }
  }
}

} // namespace hvd
