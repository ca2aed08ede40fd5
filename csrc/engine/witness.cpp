#include "engine/witness.h"

#include "engine/store_connection.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstring>
#include <random>
#include <sstream>
#include <thread>

namespace hvd {

namespace {

constexpr std::chrono::milliseconds kPollInterval{20};

static_assert(std::is_trivially_copyable_v<Witness::Place>);

std::vector<uint8_t> random_name() {
  std::random_device random;
  std::ostringstream out;
  out << std::hex << random() << random() << random() << random();
  const auto text = out.str();
  return {text.begin(), text.end()};
}

} // namespace

bool Witness::Place::differs(
    const std::vector<std::optional<Place>>& others) const {
  return std::any_of(others.begin(), others.end(), [this](const auto& other) {
    return other && other->waiting && other->seq == seq &&
        other->signature != signature;
  });
}

Witness::Witness(
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    std::string group)
    : group_store_(std::move(store)),
      rank_(rank),
      size_(size),
      group_(std::move(group)) {
  // The ranks agree on a name under which the bare store knows this group.
  const auto name = group_store_->compareSet("name", {}, random_name());
  name_.assign(name.begin(), name.end());
}

std::string Witness::key(int rank) const {
  return "hvd/place/" + name_ + '/' + std::to_string(rank);
}

c10d::Store& Witness::store() {
  if (!own_store_) {
    auto base = group_store_;
    if (auto* prefix = dynamic_cast<c10d::PrefixStore*>(base.get())) {
      base = prefix->getUnderlyingNonPrefixStore();
    }
    own_store_ = second_connection(base);
  }
  return *own_store_;
}

void Witness::tell(const Place& place) {
  told_ = place;
  answers_ = false;
  try {
    std::vector<uint8_t> bytes(sizeof(place));
    std::memcpy(bytes.data(), &place, sizeof(place));
    store().set(key(rank_), bytes);
    answers_ = true;
  } catch (const std::exception&) {
  }
}

std::optional<Witness::Place> Witness::word_of(int rank) {
  std::optional<Place> place;
  if (store().check({key(rank)})) {
    const auto bytes = store().get(key(rank));
    if (bytes.size() == sizeof(Place)) {
      std::memcpy(&place.emplace(), bytes.data(), bytes.size());
    }
  }
  return place;
}

std::vector<std::optional<Witness::Place>> Witness::ask(
    std::chrono::milliseconds patience,
    const Gone& gone) {
  std::vector<std::optional<Place>> places(size_);
  places[rank_] = told_;
  if (!answers_) {
    return places;
  }
  const auto give_up = std::chrono::steady_clock::now() + patience;
  try {
    for (int rank = 0; rank < size_; ++rank) {
      // Whoever is gone may have spoken before.
      places[rank] = word_of(rank);
      while (!places[rank] && !gone(rank) &&
             std::chrono::steady_clock::now() < give_up) {
        std::this_thread::sleep_for(kPollInterval);
        places[rank] = word_of(rank);
      }
    }
  } catch (const std::exception&) {
  }
  return places;
}

std::string Witness::report(
    const std::vector<std::optional<Place>>& places,
    const Gone& gone) const {
  std::ostringstream out;
  for (int rank = 0; rank < size_; ++rank) {
    out << (rank == 0 ? "" : "; ") << "rank " << rank << ' ';
    if (places[rank]) {
      out << "called " << places[rank]->signature.describe() << " as number "
          << places[rank]->seq
          << (places[rank]->waiting ? "" : ", its last, and waits for nothing")
          << (gone(rank) ? ", and has left or died" : "");
    } else if (gone(rank)) {
      out << "has left or died";
    } else {
      out << "left no word (it has died, or has not called anything)";
    }
  }
  if (!answers_) {
    out << "; the store does not answer";
  }
  return out.str();
}

std::string Witness::missing(
    uint64_t seq,
    const std::vector<std::optional<Place>>& places) const {
  std::ostringstream out;
  const char* separator = "";
  for (int rank = 0; rank < size_; ++rank) {
    const auto& place = places[rank];
    if (place && place->submitted > seq) {
      continue;
    }
    out << std::exchange(separator, "; ") << "rank " << rank;
    if (place) {
      out << ", which last called " << place->signature.describe()
          << " as number " << place->seq;
    } else {
      out << ", of which nothing is known";
    }
  }
  return *separator == '\0' ? "no rank" : out.str();
}

} // namespace hvd
