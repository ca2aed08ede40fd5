#include "common/fork.h"

#include <pthread.h>

#include <atomic>

namespace hvd {

namespace {

std::atomic<int> depth{0};

[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] {
  depth.fetch_add(1, std::memory_order_relaxed);
});

} // namespace

int fork_depth() {
  return depth.load(std::memory_order_relaxed);
}

} // namespace hvd
