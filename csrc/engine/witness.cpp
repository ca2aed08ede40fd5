#include "engine/witness.h"

#include <cstring>
#include <sstream>
#include <thread>

namespace hvd {

namespace {

constexpr std::chrono::seconds kStoreTimeout{3};
constexpr std::chrono::milliseconds kPollInterval{20};

static_assert(std::is_trivially_copyable_v<Witness::Place>);

} // namespace

Witness::Witness(
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    std::string group)
    : group_store_(std::move(store)),
      rank_(rank),
      size_(size),
      group_(std::move(group)) {}

std::string Witness::key(int rank) const {
  return "place/" + std::to_string(rank);
}

c10d::Store& Witness::store() {
  if (!own_store_) {
    own_store_ = group_store_->clone();
    own_store_->setTimeout(kStoreTimeout);
  }
  return *own_store_;
}

void Witness::tell(const Place& place) {
  try {
    std::vector<uint8_t> bytes(sizeof(place));
    std::memcpy(bytes.data(), &place, sizeof(place));
    store().set(key(rank_), bytes);
  } catch (const std::exception&) {
  }
}

std::vector<std::optional<Witness::Place>> Witness::ask(
    std::chrono::milliseconds patience) {
  std::vector<std::optional<Place>> places(size_);
  const auto give_up = std::chrono::steady_clock::now() + patience;
  try {
    for (int rank = 0; rank < size_; ++rank) {
      while (!store().check({key(rank)}) &&
             std::chrono::steady_clock::now() < give_up) {
        std::this_thread::sleep_for(kPollInterval);
      }
      if (store().check({key(rank)})) {
        const auto bytes = store().get(key(rank));
        if (bytes.size() == sizeof(Place)) {
          std::memcpy(&places[rank].emplace(), bytes.data(), bytes.size());
        }
      }
    }
  } catch (const std::exception&) {
  }
  return places;
}

std::string Witness::report(
    const std::vector<std::optional<Place>>& places) const {
  std::ostringstream out;
  for (int rank = 0; rank < size_; ++rank) {
    out << (rank == 0 ? "" : "; ") << "rank " << rank << ' ';
    if (places[rank]) {
      out << "called " << places[rank]->signature.describe() << " as number "
          << places[rank]->seq;
    } else {
      out << "left no word (it has died, or has not called anything)";
    }
  }
  return out.str();
}

} // namespace hvd
