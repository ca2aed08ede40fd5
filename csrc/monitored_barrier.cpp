#include "monitored_barrier.h"

#include "common/clock.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace hvd {

namespace {

// Between two looks: at first, and at most, for every rank asks one store.
constexpr std::chrono::milliseconds kFirstPause{2};
constexpr std::chrono::milliseconds kLongestPause{50};
// What ranks allow each other beyond the timeout: rank 0 to tell of it, the
// others to hear.
constexpr std::chrono::seconds kGrace{5};

bool wait_for_key(
    c10d::Store& store,
    const std::string& key,
    Deadline deadline) {
  // Store::wait would hold the connection, and set its own timeout.
  auto pause = kFirstPause;
  while (!store.check({key})) {
    if (Clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

std::string came(const std::string& prefix, int rank) {
  return prefix + "/came/" + std::to_string(rank);
}

std::string heard(const std::string& prefix, int rank) {
  return prefix + "/heard/" + std::to_string(rank);
}

std::string missing_key(const std::string& prefix) {
  return prefix + "/missing";
}

std::string join(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) {
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

void lead(
    c10d::Store& store,
    const std::string& prefix,
    int size,
    std::chrono::milliseconds timeout,
    bool wait_all_ranks) {
  const auto deadline = deadline_in(timeout);
  std::vector<int> missing;
  bool late = false; // the time was over before this rank looked for a peer
  for (int peer = 1; peer < size; ++peer) {
    late = Clock::now() >= deadline;
    if (!wait_for_key(store, came(prefix, peer), deadline)) {
      missing.push_back(peer);
      if (!wait_all_ranks) {
        break;
      }
    }
  }
  const std::string missed = join(missing);
  store.set(
      missing_key(prefix), std::vector<uint8_t>(missed.begin(), missed.end()));
  // The store may be this process's, and go with it. Their last word to it has
  // no answer that they could miss.
  const auto latest = Clock::now() + kGrace;
  bool all_heard = missing.empty();
  for (int peer = 1; peer < size; ++peer) {
    if (store.check({came(prefix, peer)})) {
      all_heard &= wait_for_key(store, heard(prefix, peer), latest);
    }
  }
  if (all_heard) { // and look at nothing of this barrier any more
    store.deleteKey(missing_key(prefix));
    for (int peer = 1; peer < size; ++peer) {
      store.deleteKey(came(prefix, peer));
      store.deleteKey(heard(prefix, peer));
    }
  }
  if (!missing.empty() && late && !wait_all_ranks) {
    C10_THROW_ERROR(
        DistBackendError,
        "hvd: Rank 0 timed out in monitoredBarrier after " +
            std::to_string(timeout.count()) + " ms, waiting for rank " +
            missed);
  }
  if (!missing.empty()) {
    C10_THROW_ERROR(
        DistBackendError,
        std::string("hvd: ") + (wait_all_ranks ? "Ranks " : "Rank ") + missed +
            " failed to pass monitoredBarrier in " +
            std::to_string(timeout.count()) + " ms");
  }
}

void follow(
    c10d::Store& store,
    const std::string& prefix,
    int rank,
    std::chrono::milliseconds timeout) {
  store.set(came(prefix, rank), std::vector<uint8_t>{1});
  std::string error;
  const auto key = missing_key(prefix);
  if (wait_for_key(store, key, deadline_in(timeout) + kGrace)) {
    const auto missing = store.get(key);
    store.set(heard(prefix, rank), std::vector<uint8_t>{1});
    if (missing.empty()) {
      return;
    }
    error = "it missed rank " + std::string(missing.begin(), missing.end());
  } else {
    error = "no word from it in " + std::to_string(timeout.count()) + " ms";
  }
  // The first half is the sentence that Gloo's users look for.
  C10_THROW_ERROR(
      DistBackendError,
      "hvd: Rank " + std::to_string(rank) +
          " successfully reached monitoredBarrier, but received errors while "
          "waiting for send/recv from rank 0: " +
          error);
}

} // namespace

void monitored_barrier(
    c10d::Store& store,
    const std::string& prefix,
    int rank,
    int size,
    std::chrono::milliseconds timeout,
    bool wait_all_ranks) {
  if (rank == 0) {
    lead(store, prefix, size, timeout, wait_all_ranks);
  } else {
    follow(store, prefix, rank, timeout);
  }
}

} // namespace hvd
