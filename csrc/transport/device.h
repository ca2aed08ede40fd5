#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

namespace hvd {

/// Moves tensors of one kind of device: the stock backend of c10d for it, as
/// ProcessGroupNCCL, and the group's own stream beside the backend's.
///
/// Streams: a verb comes after what is on the calling thread's current stream,
/// and returns when it is put on the backend's own. `wait()` of its work has
/// the current stream wait, not the host. Ranks must call the verbs in one
/// order. Threads: every member may be called from any thread.
class DeviceTransport {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// `backend`: of the same ranks as the group, and used by nobody else.
  /// `type`: of the tensors that it moves.
  DeviceTransport(
      c10::intrusive_ptr<c10d::Backend> backend,
      c10::DeviceType type);
  DeviceTransport(const DeviceTransport&) = delete;
  DeviceTransport& operator=(const DeviceTransport&) = delete;

  const char* name() const {
    return name_.c_str();
  }
  c10::DeviceType type() const {
    return type_;
  }
  c10d::Backend& backend() const {
    return *backend_;
  }

  /// Held while verbs are called; by one alone where they belong together, for
  /// what the backend is told to coalesce must not take in others. A call may
  /// block until another rank makes it, which may wait for a call of before.
  std::shared_mutex& calling() {
    return calling_;
  }

  /// The group's own, where it packs and encodes.
  c10::Stream stream(c10::Device device);
  /// The devices for which there is one.
  std::vector<c10::Device> used();

  WorkPtr all_reduce(
      at::Tensor tensor,
      const c10d::ReduceOp& op,
      std::chrono::milliseconds timeout);
  /// Equal parts, to and from each rank.
  WorkPtr all_to_all(
      at::Tensor output,
      at::Tensor input,
      std::chrono::milliseconds timeout);
  WorkPtr all_gather(
      at::Tensor output,
      at::Tensor input,
      std::chrono::milliseconds timeout);

  /// Idempotent; nothing after shutdown(), but ends one that is under way.
  void abort() noexcept;
  /// Idempotent; nothing after abort().
  void shutdown() noexcept;

 private:
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const c10::DeviceType type_;
  const std::string name_;
  std::atomic<bool> over_ = false; ///< aborted, or shut down
  std::once_flag shut_down_;
  std::shared_mutex calling_;
  std::mutex mutex_; ///< guards `streams_`
  std::map<c10::DeviceIndex, c10::Stream> streams_;
};

} // namespace hvd
