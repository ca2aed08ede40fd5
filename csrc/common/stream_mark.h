#pragma once

#include <c10/core/Event.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>

#include <optional>

namespace hvd {

/// Whether work on such a device is put on streams and done later. On the host
/// it is done when a call returns, and all that follows costs nothing.
bool has_streams(c10::Device device);

/// The stream on which this thread puts its work.
c10::Stream current_stream(c10::Device device);

/// Whether all that this thread has put on its current stream is done.
bool stream_is_idle(c10::Device device);

/// Whether what this thread puts on its current stream goes into a graph.
bool is_captured(c10::Device device);

/// As the device's own library knows it; null on the host.
void* native_handle(c10::Stream stream);

/// Has memory that its owner may give up before kept until the stream has done
/// what is on it.
void keep_until_done(const c10::StorageImpl& memory, c10::Stream stream);

/// A moment in the life of a stream.
///
/// Threads: every member may be called from any thread.
class StreamMark {
 public:
  /// When all is done that this thread has put on its current stream so far.
  explicit StreamMark(c10::Device device);

  c10::Device device() const {
    return device_;
  }

  /// What this thread puts on its current stream from now on comes after it.
  void hold_current() const;

  /// Whether it has come.
  bool has_come() const;

  /// Blocks the calling thread until it has.
  void wait() const;

 private:
  const c10::Device device_;
  std::optional<c10::Event> event_; ///< not on the host
};

} // namespace hvd
