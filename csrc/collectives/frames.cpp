#include "collectives/frames.h"

#include <ATen/ops/empty.h>

namespace hvd {

FrameLane::FrameLane(Transport& transport, int64_t capacity)
    : transport_(transport), outgoing_(at::empty({capacity}, at::kByte)) {
  for (auto& slot : slots_) {
    slot.buffers.resize(transport.size());
    for (int peer = 0; peer < transport.size(); ++peer) {
      if (peer != transport.rank()) {
        slot.buffers[peer] = at::empty({capacity}, at::kByte);
      }
    }
    post_receives(slot);
  }
}

std::byte* FrameLane::outgoing() {
  return static_cast<std::byte*>(outgoing_.mutable_data_ptr());
}

void FrameLane::post(int64_t bytes) {
  if (!last_sent_.defined() || last_sent_.numel() != bytes) {
    last_sent_ = outgoing_.narrow(0, 0, bytes);
  }
  departure_ = transport_.exchange_frames(to_all(transport_, last_sent_), {});
  // The slot read in the last round is free from here on; nobody needs it
  // before the round after this one.
  if (round_ > 0) {
    post_receives(slots_[(round_ - 1) % slots_.size()]);
  }
}

std::vector<const std::byte*> FrameLane::collect(Deadline deadline) {
  auto& slot = slots_[round_++ % slots_.size()];
  slot.arrival->wait(deadline);
  departure_->wait(deadline);
  std::vector<const std::byte*> frames(transport_.size());
  for (int rank = 0; rank < transport_.size(); ++rank) {
    const auto& from =
        rank == transport_.rank() ? outgoing_ : slot.buffers[rank];
    frames[rank] = static_cast<const std::byte*>(from.const_data_ptr());
  }
  return frames;
}

void FrameLane::post_receives(Slot& slot) {
  slot.arrival =
      transport_.exchange_frames({}, from_all(transport_, slot.buffers));
}

} // namespace hvd
