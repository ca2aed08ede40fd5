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

/// The hosts that frames go between: without levels each rank has its own.
Hosts hosts_of(const Transport& transport) {
  if (transport.hosts().have_levels()) {
    return transport.hosts();
  }
  std::vector<int> names(transport.size());
  std::iota(names.begin(), names.end(), 0);
  return Hosts(names);
}

// A rank gives its frame to the one in its place on each other host; places
// begin anew where a host has fewer.

int taker_on(const Hosts& hosts, int host, int giver) {
  const auto& there = hosts.ranks_on(host);
  return there[hosts.place_of(giver) % there.size()];
}

std::vector<int> takers(const Hosts& hosts, int giver) {
  std::vector<int> result;
  for (int host = 0; host < hosts.count(); ++host) {
    if (host != hosts.host_of(giver)) {
      result.push_back(taker_on(hosts, host, giver));
    }
  }
  return result;
}

std::vector<int> givers(const Hosts& hosts, int taker) {
  const int here = hosts.host_of(taker);
  std::vector<int> result;
  for (int host = 0; host < hosts.count(); ++host) {
    for (const int rank : hosts.ranks_on(host)) {
      if (host != here && taker_on(hosts, here, rank) == taker) {
        result.push_back(rank);
      }
    }
  }
  return result;
}

std::vector<int> neighbours(const Hosts& hosts, int rank) {
  std::vector<int> ranks = hosts.ranks_on(hosts.host_of(rank));
  ranks.erase(ranks.begin() + hosts.place_of(rank));
  return ranks;
}

/// Whose frames a rank passes on.
std::vector<int> with_givers(const Hosts& hosts, int rank) {
  auto ranks = givers(hosts, rank);
  ranks.insert(ranks.begin(), rank);
  return ranks;
}

} // namespace

FrameLane::FrameLane(Transport& transport, int64_t capacity)
    : transport_(transport) {
  const int rank = transport.rank();
  const Hosts hosts = hosts_of(transport);
  const auto bundle_of = [&](std::vector<int> ranks) {
    const auto bytes =
        static_cast<int64_t>(ranks.size()) * (kPrefix + padded(capacity));
    return Bundle{std::move(ranks), at::empty({bytes}, at::kByte)};
  };
  own_.peers = takers(hosts, rank);
  own_.bundle = bundle_of({rank});
  passed_on_.peers = neighbours(hosts, rank);
  if (!passed_on_.peers.empty()) {
    passed_on_.bundle = bundle_of(with_givers(hosts, rank));
  }
  for (auto& slot : slots_) {
    auto& [given, passed_on] = slot;
    for (const int giver : givers(hosts, rank)) {
      given.bundles.push_back(bundle_of({giver}));
    }
    for (const int neighbour : passed_on_.peers) {
      passed_on.bundles.push_back(bundle_of(with_givers(hosts, neighbour)));
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
  receives.reserve(incoming.bundles.size());
  for (const auto& [ranks, bytes] : incoming.bundles) {
    receives.push_back({ranks.front(), bytes});
  }
  incoming.arrival = transport_.exchange_frames({}, receives);
}

} // namespace hvd
