#include "engine/frame_track.h"

#include "collectives/bucket.h"
#include "collectives/contribution.h"
#include "collectives/stand_ins.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

namespace hvd {

Batch FrameTrack::next(uint64_t tail) {
  if (!started.empty()) {
    return {};
  }
  // Only the first is waited for: a device may be done with another one not
  // before some rank has heard that the first is.
  const auto end =
      std::find_if(queue.begin() + 1, queue.end(), [](const auto& item) {
        return waits_for_device(*item.collective);
      });
  if (end != queue.end()) {
    tail = std::min(tail, end->collective->seq);
  }
  std::vector<const Collective*> ready{queue.front().collective};
  size_t agreed = 1;
  for (auto item = queue.begin() + 1;
       limits_.fusion_threshold > 0 && item != end;
       ++item) {
    if (item->collective->seq < agreement_.agreed()) {
      ++agreed;
    } else if (!agreement_.may_exceed()) {
      break;
    }
    ready.push_back(item->collective);
  }
  Batch batch = cut(plan(ready, agreed, limits_));
  batch.header = agreement_.header(batch, tail);
  return batch;
}

Rest FrameTrack::start(Batch& batch) {
  if (!frames_) {
    frames_.emplace(
        transport_, static_cast<int64_t>(sizeof(FrameHeader)) + limits_.frame);
  }
  std::byte* const frame = frames_->outgoing();
  std::memcpy(frame, &batch.header, sizeof(batch.header));
  int64_t end = sizeof(batch.header);
  for (const auto& [member, offset] : batch.plan.framed) {
    const int64_t begin = static_cast<int64_t>(sizeof(batch.header)) + offset;
    const int64_t written =
        write_contribution(*batch.items[member].collective, frame + begin);
    if (written > 0) { // the frame ends with the last that this rank gives
      end = begin + written;
    }
  }
  frames_->post(end);
  return Rest::Outputs;
}

size_t FrameTrack::finish(Batch& batch) {
  auto frames = frames_->collect(batch.deadline);
  const size_t members = agreement_.check(batch, frames);
  if (members == 0) {
    return 0;
  }
  if (members < batch.items.size()) {
    std::vector<const Collective*> left;
    for (size_t member = 0; member < members; ++member) {
      left.push_back(batch.items[member].collective);
    }
    // What is agreed on was planned first: it is in the frame as it was.
    batch.plan = plan(left, members, limits_);
  } else if (members > batch.plan.agreed) {
    batch.plan.agreed = members;
    // These only begin now, and the others go on with them.
    batch.deadline = deadline_in(batch.timeout());
  }
  batch.times.exchanged = Clock::now();
  std::vector<const std::byte*> contributions(frames.size());
  for (const auto& [member, offset] : batch.plan.framed) {
    for (size_t rank = 0; rank < frames.size(); ++rank) {
      contributions[rank] = frames[rank] + sizeof(FrameHeader) + offset;
    }
    apply_contributions(
        *batch.items[member].collective,
        transport_.rank(),
        transport_.hosts(),
        contributions);
  }
  run_buckets(batch);
  return members;
}

void FrameTrack::run_buckets(Batch& batch) {
  const auto bytes_of = [&](const std::vector<size_t>& members) {
    int64_t bytes = 0;
    for (const size_t member : members) {
      bytes += bucket_bytes(*batch.items[member].collective);
    }
    return bytes;
  };
  const auto aligned = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  int64_t packed = 0;
  for (const auto& members : batch.plan.buckets) {
    packed += members.size() > 1 ? aligned(bytes_of(members)) : 0;
  }
  if (!fusion_buffer_.defined() || fusion_buffer_.numel() < packed) {
    fusion_buffer_ = at::empty({packed}, at::kByte);
    statistics_.grow_fusion_buffer(packed);
  }
  int64_t begin = 0;
  for (const auto& members : batch.plan.buckets) {
    if (members.size() == 1) {
      batch.running.push_back(
          hvd::start(*batch.items[members[0]].collective, transport_));
      continue;
    }
    std::vector<const Collective*> collectives;
    collectives.reserve(members.size());
    for (const size_t member : members) {
      collectives.push_back(batch.items[member].collective);
    }
    const int64_t bytes = bytes_of(members);
    const auto buffer = fusion_buffer_.narrow(0, begin, bytes)
                            .view(collectives[0]->signature.dtype);
    begin += aligned(bytes);
    batch.running.push_back(
        start_bucket(std::move(collectives), buffer, transport_));
  }
  if (!batch.running.empty()) {
    finish_all(batch.running, batch.deadline);
    batch.times.exchanged = Clock::now();
  }
}

} // namespace hvd
