#include "collectives/frames.h"

#include <ATen/ops/empty.h>

#include <cstring>

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

} // namespace

FrameLane::FrameLane(Transport& transport, int64_t capacity)
    : transport_(transport),
      steps_(frame_steps(transport)),
      outgoing_(steps_.size()) {
  const auto room_for = [&](size_t frames) {
    const auto count = static_cast<int64_t>(frames);
    return at::empty({count * (kPrefix + padded(capacity))}, at::kByte);
  };
  size_t held = 1;
  for (size_t step = 0; step < steps_.size(); ++step) {
    const auto& [sends, receives] = steps_[step];
    for (const auto& [peer, frames] : sends) {
      outgoing_[step].bundles.push_back({peer, at::Tensor()});
    }
    for (auto& slot : slots_) {
      auto& incoming = slot.emplace_back();
      for (const auto& [peer, ranks] : receives) {
        incoming.bundles.push_back({peer, room_for(ranks.size())});
      }
    }
    for (const auto& [peer, ranks] : receives) {
      held += step + 1 < steps_.size() ? ranks.size() : 0;
    }
  }
  held_ = room_for(held);
  for (auto& slot : slots_) {
    post_receives(slot);
  }
}

std::byte* FrameLane::outgoing() {
  return begin_of(held_) + kPrefix;
}

void FrameLane::post(int64_t bytes) {
  write_length(begin_of(held_), bytes);
  ends_ = {kPrefix + padded(bytes)};
  send(0);
  // The slot read in the last round is free from here on; nobody needs it
  // before the round after this one.
  if (round_ > 0) {
    post_receives(slots_[(round_ - 1) % slots_.size()]);
  }
}

std::vector<const std::byte*> FrameLane::collect(Deadline deadline) {
  const Slot& slot = slots_[round_++ % slots_.size()];
  for (size_t step = 0; step < steps_.size(); ++step) {
    if (step > 0) {
      for_each_frame(
          step - 1, slot, [&](int, const std::byte* prefix) { hold(prefix); });
      send(step);
    }
    slot[step].arrival->wait(deadline);
  }
  std::vector<const std::byte*> frames(transport_.size());
  frames[transport_.rank()] = begin_of(held_) + kPrefix;
  for (size_t step = 0; step < steps_.size(); ++step) {
    outgoing_[step].departure->wait(deadline);
    for_each_frame(step, slot, [&](int rank, const std::byte* prefix) {
      frames[rank] = prefix + kPrefix;
    });
  }
  return frames;
}

template <typename Visit>
void FrameLane::for_each_frame(size_t step, const Slot& slot, Visit visit)
    const {
  const auto& receives = steps_[step].receives;
  for (size_t i = 0; i < receives.size(); ++i) {
    const std::byte* prefix = begin_of(slot[step].bundles[i].buffer);
    for (const int rank : receives[i].ranks) {
      visit(rank, prefix);
      prefix += extent(prefix);
    }
  }
}

void FrameLane::hold(const std::byte* prefix) {
  const int64_t bytes = extent(prefix);
  std::memcpy(
      begin_of(held_) + ends_.back(), prefix, static_cast<size_t>(bytes));
  ends_.push_back(ends_.back() + bytes);
}

void FrameLane::send(size_t step) {
  auto& [bundles, departure] = outgoing_[step];
  // One tensor for all that get as much: shared memory makes one copy of it.
  at::Tensor bundle = bundles[0].buffer;
  for (size_t i = 0; i < bundles.size(); ++i) {
    const int64_t bytes = ends_[steps_[step].sends[i].frames - 1];
    if (!bundle.defined() || bundle.numel() != bytes) {
      bundle = held_.narrow(0, 0, bytes);
    }
    bundles[i].buffer = bundle;
  }
  departure = transport_.exchange_frames(bundles, {});
}

void FrameLane::post_receives(Slot& slot) {
  for (auto& [bundles, arrival] : slot) {
    arrival = transport_.exchange_frames({}, bundles);
  }
}

} // namespace hvd
