#include "engine/witness.h"

#include "common/clock.h"
#include "common/rank_names.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>

namespace hvd {

namespace {

constexpr std::chrono::milliseconds kFirstPause{20};

/// That the rank has made the group, and has nothing to tell.
const std::vector<uint8_t> kNoWord{0};

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

std::string last_called(const Witness::Place& place) {
  if (place.submitted == 0) {
    return "no collective";
  }
  return place.signature.describe() + " as number " + std::to_string(place.seq);
}

/// By the rank whose key it is. In one request: where there are many ranks, all
/// of them ask at once.
std::vector<std::optional<Witness::Place>> read_places(
    c10d::Store& store,
    const std::vector<std::string>& keys) {
  std::vector<size_t> ranks(keys.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  if (!store.check(keys)) { // some have not made the group yet
    std::erase_if(
        ranks, [&](size_t rank) { return !store.check({keys[rank]}); });
  }
  std::vector<std::string> present;
  for (const size_t rank : ranks) {
    present.push_back(keys[rank]);
  }
  const auto words = store.multiGet(present);
  std::vector<std::optional<Witness::Place>> places(keys.size());
  for (size_t i = 0; i < words.size(); ++i) {
    places[ranks[i]] = decode(words[i]);
  }
  return places;
}

c10::intrusive_ptr<c10d::Store> without_prefixes(
    const c10::intrusive_ptr<c10d::Store>& store) {
  auto* const prefix = dynamic_cast<c10d::PrefixStore*>(store.get());
  return prefix != nullptr ? prefix->getUnderlyingNonPrefixStore() : store;
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
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::string group)
    : rank_(rank), size_(size), group_(std::move(group)) {
  // The ranks agree on a name under which the bare store knows this group.
  const auto name = store->compareSet("name", {}, random_name());
  name_.assign(name.begin(), name.end());
  const auto bare = without_prefixes(store);
  bare->set(key(rank_), kNoWord);
  connection_ = second_connection(bare);
}

std::string Witness::key(int rank) const {
  return "hvd/place/" + name_ + '/' + std::to_string(rank);
}

void Witness::tell(const Place& place) {
  told_ = place;
  answers_ =
      connection_->run([key = key(rank_), word = encode(place)](
                           c10d::Store& store) { store.set(key, word); });
}

std::vector<std::optional<Witness::Place>> Witness::heard() {
  std::vector<std::optional<Place>> places(size_);
  if (answers_) {
    std::vector<std::string> keys;
    for (int rank = 0; rank < size_; ++rank) {
      keys.push_back(key(rank));
    }
    const auto read = std::make_shared<decltype(places)>();
    answers_ =
        connection_->run([keys = std::move(keys), read](c10d::Store& store) {
          *read = read_places(store, keys);
        });
    if (answers_) {
      places = std::move(*read);
    }
  }
  places[rank_] = told_;
  return places;
}

std::vector<std::optional<Witness::Place>> Witness::ask(
    uint64_t submitted,
    std::chrono::milliseconds patience,
    const Gone& gone) {
  const auto give_up = Clock::now() + patience;
  auto pause = kFirstPause;
  while (true) {
    auto places = heard();
    bool is_known = true;
    for (int rank = 0; rank < size_; ++rank) {
      const bool speaks = places[rank] && places[rank]->submitted >= submitted;
      is_known = is_known && (speaks || gone(rank));
    }
    const auto now = Clock::now();
    if (is_known || !answers_ || now >= give_up) {
      return places;
    }
    std::this_thread::sleep_until(std::min(now + pause, give_up));
    pause *= 2;
  }
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
    uint64_t submitted,
    const std::vector<std::optional<Place>>& places,
    const Gone& gone) const {
  std::vector<std::string> clauses;
  for (int rank = 0; rank < size_; ++rank) {
    const auto& place = places[rank];
    std::ostringstream out;
    if (place) {
      out << " called " << last_called(*place);
      if (place->waiting && place->submitted < submitted) {
        out << " when last heard of"; // and may have gone on since
      } else if (!place->waiting && place->submitted > 0) {
        out << " last";
      }
      if (place->message.number > 0) {
        out << ", waiting for " << place->message.describe();
      } else if (!place->waiting) {
        out << ", waiting for nothing";
      }
      out << (gone(rank) ? ", then left or died" : "");
    } else if (gone(rank)) {
      out << " left or died";
    } else {
      out << " left no word (dead, nothing called yet, or not in time)";
    }
    clauses.push_back(out.str());
  }
  return by_rank(clauses, "; ") +
      (answers_ ? "" : "; the store does not answer");
}

std::string Witness::missing(
    uint64_t seq,
    const std::vector<std::optional<Place>>& places) const {
  std::vector<std::string> clauses(size_);
  for (int rank = 0; rank < size_; ++rank) {
    const auto& place = places[rank];
    if (!place) {
      clauses[rank] = ", of which nothing is known";
    } else if (place->submitted <= seq) {
      clauses[rank] = ", which last called " + last_called(*place);
      if (place->message.number > 0) {
        clauses[rank] += " and waits for " + place->message.describe();
      }
    }
  }
  const auto text = by_rank(clauses, "; ");
  return text.empty() ? "no rank" : text;
}

} // namespace hvd
