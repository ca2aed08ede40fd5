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

static_assert(std::is_trivially_copyable_v<Witness::Call>);

/// The call, the number of the splits, and these.
std::vector<uint8_t> encode(const Witness::Place& place) {
  std::vector<uint8_t> bytes;
  const auto add = [&bytes](const void* data, size_t size) {
    const auto* const begin = static_cast<const uint8_t*>(data);
    bytes.insert(bytes.end(), begin, begin + size);
  };
  add(static_cast<const Witness::Call*>(&place), sizeof(Witness::Call));
  add(&place.splits.seq, sizeof(uint64_t));
  for (const auto* counts : {&place.splits.sends, &place.splits.expects}) {
    add(counts->data(), counts->size() * sizeof(int64_t));
  }
  return bytes;
}

std::optional<Witness::Place> decode(const std::vector<uint8_t>& bytes) {
  constexpr size_t kFixed = sizeof(Witness::Call) + sizeof(uint64_t);
  if (bytes.size() < kFixed) {
    return std::nullopt;
  }
  Witness::Place place;
  const auto* next = bytes.data();
  const auto take = [&next](void* data, size_t size) {
    std::memcpy(data, next, size);
    next += size;
  };
  take(static_cast<Witness::Call*>(&place), sizeof(Witness::Call));
  take(&place.splits.seq, sizeof(uint64_t));
  const size_t count = (bytes.size() - kFixed) / sizeof(int64_t) / 2;
  for (auto* counts : {&place.splits.sends, &place.splits.expects}) {
    counts->resize(count);
    if (count > 0) {
      take(counts->data(), count * sizeof(int64_t));
    }
  }
  return place;
}

std::vector<int64_t> numels(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> counts;
  counts.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    counts.push_back(tensor.numel());
  }
  return counts;
}

std::vector<uint8_t> random_name() {
  std::random_device random;
  std::ostringstream out;
  out << std::hex << random() << random() << random() << random();
  const auto text = out.str();
  return {text.begin(), text.end()};
}

} // namespace

Witness::Splits Witness::Splits::of(const Collective& all_to_all) {
  return {
      all_to_all.seq, numels(all_to_all.inputs), numels(all_to_all.outputs)};
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
    store().set(key(rank_), encode(place));
    answers_ = true;
  } catch (const std::exception&) {
  }
}

std::optional<Witness::Place> Witness::word_of(int rank) {
  return store().check({key(rank)}) ? decode(store().get(key(rank)))
                                    : std::nullopt;
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

std::optional<std::string> Witness::difference(
    uint64_t seq,
    const std::vector<std::optional<Place>>& places) {
  const Signature* first = nullptr;
  for (const auto& place : places) {
    if (place && place->waiting && place->seq == seq) {
      first = first == nullptr ? &place->signature : first;
      if (place->signature != *first) {
        return "the ranks called different collectives";
      }
    }
  }
  // Who has sent too much may have all that it wants, and wait no more.
  const auto knows = [seq](const std::optional<Place>& place) {
    return place && place->splits.seq == seq && !place->splits.sends.empty();
  };
  for (size_t from = 0; from < places.size(); ++from) {
    for (size_t to = 0; to < places.size(); ++to) {
      if (knows(places[from]) && knows(places[to])) {
        const auto sent = places[from]->splits.sends[to];
        const auto expected = places[to]->splits.expects[from];
        if (sent != expected) {
          std::ostringstream out;
          out << "rank " << from << " sends " << sent << " elements to rank "
              << to << ", which expects " << expected;
          return out.str();
        }
      }
    }
  }
  return std::nullopt;
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
