#include "engine/device_track.h"

#include "collectives/device_allreduce.h"

#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <shared_mutex>

namespace hvd {

namespace {

/// Of an all_reduce that has not gone to the backend by itself: the moment when
/// the group's own stream is done with it.
class StreamWork final : public c10d::Work {
 public:
  explicit StreamWork(c10::Device device) : mark_(device) {}

  bool isCompleted() override {
    return mark_.has_come();
  }
  bool isSuccess() const override {
    return mark_.has_come();
  }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    mark_.hold_current();
    return true;
  }
  void synchronize() override {
    mark_.hold_current();
  }

 private:
  const StreamMark mark_;
};

Limits without_frames(Limits limits) {
  limits.frame = 0;
  return limits;
}

c10::Device device_of(const Item& item) {
  return item.collective->device_call->device;
}

} // namespace

DeviceTrack::DeviceTrack(
    Transport& host,
    DeviceTransport* device,
    const Limits& limits,
    bool check)
    : host_(host),
      device_(device),
      limits_(without_frames(limits)),
      check_(check && host.size() > 1) {}

bool DeviceTrack::is_fusible(const Collective& collective) const {
  return !collective.device_call->passed_on && host_.size() > 1 &&
      limits_.fusion_threshold > 0 && is_small(collective, limits_);
}

bool DeviceTrack::sends_header(const Collective& first) const {
  return check_ || is_fusible(first);
}

Batch DeviceTrack::next(uint64_t tail) {
  const auto& first = *queue.front().collective;
  if (sends_header(first) && !started.empty()) {
    return {};
  }
  std::vector<const Collective*> ready{&first};
  for (size_t place = 1; is_fusible(first) && place < queue.size(); ++place) {
    const auto& item = queue[place];
    if (item.collective->seq >= agreement_.agreed() ||
        !is_fusible(*item.collective) ||
        device_of(item) != device_of(queue.front())) {
      break;
    }
    ready.push_back(item.collective);
  }
  Batch batch = cut(plan(ready, ready.size(), limits_));
  batch.header = agreement_.header(batch, tail);
  return batch;
}

Rest DeviceTrack::start(Batch& batch) {
  const bool has_header = sends_header(*batch.items[0].collective);
  if (has_header) {
    post_header(batch);
  }
  if (check_) {
    return Rest::Outputs;
  }
  launch(batch);
  return has_header ? Rest::Agreement : Rest::Nothing;
}

void DeviceTrack::post_header(const Batch& batch) {
  if (!headers_) {
    headers_.emplace(host_, static_cast<int64_t>(sizeof(FrameHeader)));
  }
  // No fingerprint: ranks that differ have to learn of it.
  headers_->post(&batch.header, Lane{batch.items[0].collective->seq, 0, 0});
}

size_t DeviceTrack::finish(Batch& batch) {
  const auto headers = headers_->collect(batch.deadline);
  if (check_) {
    const size_t members = agreement_.check(batch, headers);
    if (members > 0) {
      batch.times.exchanged = Clock::now();
      launch(batch);
    }
    return members;
  }
  try {
    if (const size_t members = agreement_.check(batch, headers)) {
      return members;
    }
  } catch (const Mismatch& e) {
    throw std::runtime_error(e.what()); // what is launched cannot be taken back
  }
  throw std::runtime_error("the ranks called different collectives");
}

void DeviceTrack::launch(Batch& batch) {
  try {
    launch_on_stream(batch);
  } catch (const c10::DistError&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception&) {
    if (!batch.items[0].collective->device_call->passed_on) {
      throw;
    }
    // What the backend's checks refuse they refuse on every rank.
    batch.error = std::current_exception();
  }
}

void DeviceTrack::launch_on_stream(const Batch& batch) {
  const auto device = device_of(batch.items[0]);
  const auto own = device_->stream(device);
  const auto& first = batch.items[0].collective->device_call;
  const std::shared_lock<std::shared_mutex> calling(device_->calling());
  if (!first->ready && ahead_.contains(device.index())) {
    first->mark_ready(); // this is its caller's thread
  }
  const auto stream = first->ready ? own : current_stream(device);
  const c10::StreamGuard guard(stream);
  for (const auto& item : batch.items) {
    if (const auto& ready = item.collective->device_call->ready) {
      ready->hold_current();
    }
  }
  if (first->passed_on) {
    first->pass_on(device_->backend());
    ahead_.erase(device.index());
    last_ = first;
    return;
  }
  if (last_) {
    try {
      // What it has yet to write may be what is read next.
      std::exchange(last_, nullptr)->hold_current();
    } catch (const std::exception&) {
      // Whoever waits for that one hears of it.
    }
  }
  for (const auto& bucket : batch.plan.buckets) {
    std::vector<const Collective*> members;
    for (const size_t member : bucket) {
      members.push_back(batch.items[member].collective);
      keep_until_done(
          *members.back()->outputs[0].storage().unsafeGetStorageImpl(), stream);
    }
    const auto& residual = members[0]->residual; // then it is alone
    if (residual) {
      drop_spoiled(*members[0]);
    }
    launch_allreduces(members, *device_);
    if (residual) {
      note_if_spoiled(*members[0]);
    }
  }
  const auto done = c10::make_intrusive<StreamWork>(device);
  for (const auto& item : batch.items) {
    item.collective->device_call->work = done;
  }
  ahead_.insert(device.index());
}

void DeviceTrack::drop_spoiled(const Collective& collective) {
  Residual& residual = *collective.residual;
  if (residual.contribution.defined()) {
    const auto spoiled = not_finite_in(collective).ge(residual.step);
    residual.contribution.masked_fill_(spoiled, 0);
    residual.shard.masked_fill_(spoiled, 0);
  }
  residual.step = collective.step;
}

void DeviceTrack::note_if_spoiled(const Collective& collective) {
  // NaN if one of them, or their sum, is not finite.
  const auto zero = collective.outputs[0].sum(at::kFloat).mul_(0);
  not_finite_in(collective).masked_fill_(zero.ne(0), collective.step);
}

at::Tensor& DeviceTrack::not_finite_in(const Collective& collective) {
  const auto device = collective.device_call->device;
  auto& step = not_finite_in_[device.index()];
  if (!step.defined()) {
    step = at::zeros({}, at::TensorOptions(device).dtype(at::kLong));
  }
  return step;
}

} // namespace hvd
