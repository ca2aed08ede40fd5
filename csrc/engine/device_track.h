#pragma once

#include "collectives/rows.h"
#include "engine/agreement.h"
#include "engine/plan.h"
#include "engine/track.h"
#include "transport/device.h"

#include <map>
#include <optional>
#include <set>

namespace hvd {

/// Collectives of tensors on a device: put on its streams, one after the other,
/// in the order of the sequence, and done with that.
///
/// Small all_reduces fuse. The headers that bound their batches travel between
/// the hosts, while the device works. A batch does not wait for its own header,
/// only the next one does: the first of a queue goes at once, and what comes
/// meanwhile goes with the next that all ranks have ready. With `check` every
/// collective waits for its header.
class DeviceTrack final : public Track {
 public:
  /// `device`: null if there is none; then nothing may be queued.
  DeviceTrack(
      Transport& host,
      DeviceTransport* device,
      const Limits& limits,
      bool check);

  /// Of the collectives on this track.
  uint64_t enlist(const Collective& collective) {
    return agreement_.enlist(collective);
  }

  /// Whether the next to queue a collective also launches it, and before the
  /// call returns. Called with the engine's lock.
  bool launches_next() const {
    return !check_ && !starting && queue.empty() && started.empty();
  }

  Batch next(uint64_t tail) override;
  Rest start(Batch& batch) override;
  size_t finish(Batch& batch) override;

 private:
  bool is_fusible(const Collective& collective) const;
  bool sends_header(const Collective& first) const;
  void post_header(const Batch& batch);
  void launch(Batch& batch);
  void launch_on_stream(const Batch& batch);
  // As ErrorFeedback's begin() and end(), in the order of the group's stream.
  void drop_spoiled(const Collective& collective);
  void note_if_spoiled(const Collective& collective);
  /// The latest such step; on the collective's device.
  at::Tensor& not_finite_in(const Collective& collective);

  Transport& host_;
  DeviceTransport* const device_;
  const Limits limits_;
  const bool check_;
  Agreement agreement_; ///< guarded by the engine's lock, but for check()
  std::optional<RowExchange> headers_; ///< made for the first header
  std::map<c10::DeviceIndex, at::Tensor> not_finite_in_;
  std::shared_ptr<DeviceCall> last_; ///< launched by the backend itself
  /// Where the group's stream has what the backend's does not come after yet.
  std::set<c10::DeviceIndex> ahead_;
};

} // namespace hvd
