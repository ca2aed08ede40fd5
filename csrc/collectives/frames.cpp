#include "collectives/frames.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace hvd {

namespace {

constexpr int64_t kPrefix = FrameLane::kPrefix;

int64_t padded(int64_t bytes) {
  return (bytes + kPrefix - 1) / kPrefix * kPrefix;
}

std::byte* begin_of(const at::Tensor& bytes) {
  return static_cast<std::byte*>(bytes.mutable_data_ptr());
}

void write_length(std::byte* prefix, int64_t bytes) {
  std::memcpy(prefix, &bytes, sizeof(bytes));
}

/// A frame's bytes with its prefix, and what aligns the next one.
int64_t extent(const std::byte* prefix) {
  int64_t bytes = 0;
  std::memcpy(&bytes, prefix, sizeof(bytes));
  return kPrefix + padded(bytes);
}

std::vector<int> without(std::vector<int> ranks, int rank) {
  ranks.erase(std::remove(ranks.begin(), ranks.end(), rank), ranks.end());
  return ranks;
}

std::vector<int> all_but(int rank, int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return without(std::move(ranks), rank);
}

// A rank gives its frame to the one in its place on each other host; places
// begin anew where a host has fewer.

std::vector<int> takers(const Transport& transport) {
  const Hosts& hosts = transport.hosts();
  const int rank = transport.rank();
  if (!hosts.have_levels()) {
    return all_but(rank, transport.size());
  }
  std::vector<int> result;
  for (int host = 0; host < hosts.count(); ++host) {
    const auto& there = hosts.ranks_on(host);
    if (host != hosts.host_of(rank)) {
      result.push_back(there[hosts.place_of(rank) % there.size()]);
    }
  }
  return result;
}

std::vector<int> givers(const Transport& transport, int taker) {
  const Hosts& hosts = transport.hosts();
  if (!hosts.have_levels()) {
    return all_but(taker, transport.size());
  }
  const auto& here = hosts.ranks_on(hosts.host_of(taker));
  std::vector<int> result;
  for (int rank = 0; rank < transport.size(); ++rank) {
    if (hosts.host_of(rank) != hosts.host_of(taker) &&
        here[hosts.place_of(rank) % here.size()] == taker) {
      result.push_back(rank);
    }
  }
  return result;
}

std::vector<int> neighbours(const Transport& transport) {
  const Hosts& hosts = transport.hosts();
  const int rank = transport.rank();
  return hosts.have_levels()
      ? without(hosts.ranks_on(hosts.host_of(rank)), rank)
      : std::vector<int>();
}

/// Whose frames a rank passes on.
std::vector<int> with_givers(const Transport& transport, int rank) {
  auto ranks = givers(transport, rank);
  ranks.insert(ranks.begin(), rank);
  return ranks;
}

} // namespace

FrameLane::FrameLane(Transport& transport, int64_t capacity)
    : transport_(transport) {
  const int rank = transport.rank();
  const auto bundle_of = [&](std::vector<int> ranks) {
    const auto bytes =
        static_cast<int64_t>(ranks.size()) * (kPrefix + padded(capacity));
    return Bundle{std::move(ranks), at::empty({bytes}, at::kByte)};
  };
  own_.peers = takers(transport);
  own_.bundle = bundle_of({rank});
  passed_on_.peers = neighbours(transport);
  if (!passed_on_.peers.empty()) {
    passed_on_.bundle = bundle_of(with_givers(transport, rank));
  }
  for (auto& slot : slots_) {
    auto& [given, passed_on] = slot;
    for (const int giver : givers(transport, rank)) {
      given.peers.push_back(giver);
      given.bundles.push_back(bundle_of({giver}));
    }
    for (const int neighbour : passed_on_.peers) {
      passed_on.peers.push_back(neighbour);
      passed_on.bundles.push_back(bundle_of(with_givers(transport, neighbour)));
    }
    post_receives(slot);
  }
}

std::byte* FrameLane::outgoing() {
  return begin_of(own_.bundle.bytes) + kPrefix;
}

void FrameLane::post(int64_t bytes) {
  write_length(begin_of(own_.bundle.bytes), bytes);
  post(own_, kPrefix + bytes);
  // The slot read in the last round is free from here on; nobody needs it
  // before the round after this one.
  if (round_ > 0) {
    post_receives(slots_[(round_ - 1) % slots_.size()]);
  }
}

std::vector<const std::byte*> FrameLane::collect(Deadline deadline) {
  auto& [given, passed_on] = slots_[round_++ % slots_.size()];
  given.arrival->wait(deadline);
  if (!passed_on_.peers.empty()) {
    post(passed_on_, pack(given));
    passed_on.arrival->wait(deadline);
    passed_on_.departure->wait(deadline);
  }
  own_.departure->wait(deadline);
  std::vector<const std::byte*> frames(transport_.size());
  const auto open = [&](const Bundle& bundle) {
    const std::byte* at = begin_of(bundle.bytes);
    for (const int rank : bundle.ranks) {
      frames[rank] = at + kPrefix;
      at += extent(at);
    }
  };
  open(own_.bundle);
  std::for_each(given.bundles.begin(), given.bundles.end(), open);
  std::for_each(passed_on.bundles.begin(), passed_on.bundles.end(), open);
  return frames;
}

/// Returns the bytes of the bundle to pass on.
int64_t FrameLane::pack(const Incoming& given) {
  std::byte* const begin = begin_of(passed_on_.bundle.bytes);
  std::byte* end = begin;
  const auto add = [&](const Bundle& bundle) {
    const std::byte* const frame = begin_of(bundle.bytes);
    const int64_t bytes = extent(frame);
    std::memcpy(end, frame, static_cast<size_t>(bytes));
    end += bytes;
  };
  add(own_.bundle);
  std::for_each(given.bundles.begin(), given.bundles.end(), add);
  return end - begin;
}

void FrameLane::post(Outgoing& outgoing, int64_t bytes) {
  auto& [peers, bundle, sent, departure] = outgoing;
  if (!sent.defined() || sent.numel() != bytes) {
    sent = bundle.bytes.narrow(0, 0, bytes);
  }
  std::vector<Transfer> sends;
  sends.reserve(peers.size());
  for (const int peer : peers) {
    sends.push_back({peer, sent});
  }
  departure = transport_.exchange_frames(sends, {});
}

void FrameLane::post_receives(Slot& slot) {
  post(slot.given);
  if (!passed_on_.peers.empty()) {
    post(slot.passed_on);
  }
}

void FrameLane::post(Incoming& incoming) {
  std::vector<Transfer> receives;
  receives.reserve(incoming.peers.size());
  for (size_t place = 0; place < incoming.peers.size(); ++place) {
    receives.push_back({incoming.peers[place], incoming.bundles[place].bytes});
  }
  incoming.arrival = transport_.exchange_frames({}, receives);
}

} // namespace hvd
