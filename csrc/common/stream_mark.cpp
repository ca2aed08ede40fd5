#include "common/stream_mark.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace hvd {

bool has_streams(c10::Device device) {
  return !device.is_cpu();
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

bool stream_is_idle(c10::Device device) {
  return !has_streams(device) ||
      c10::impl::VirtualGuardImpl(device.type())
          .queryStream(current_stream(device));
}

bool is_captured(c10::Device device) {
  return has_streams(device) &&
      c10::impl::VirtualGuardImpl(device.type())
          .isStreamCapturing(current_stream(device));
}

void* native_handle(c10::Stream stream) {
  if (!has_streams(stream.device())) {
    return nullptr;
  }
  const c10::impl::VirtualGuardImpl guard(stream.device_type());
  return guard.getStreamNativeHandle(stream);
}

void keep_until_done(const c10::StorageImpl& memory, c10::Stream stream) {
  if (has_streams(stream.device())) {
    c10::impl::VirtualGuardImpl(stream.device_type())
        .recordDataPtrOnStream(memory.data_ptr(), stream);
  }
}

StreamMark::StreamMark(c10::Device device) : device_(device) {
  if (has_streams(device)) {
    event_.emplace(device.type());
    event_->record(current_stream(device));
  }
}

void StreamMark::hold_current() const {
  if (event_) {
    event_->block(current_stream(device_));
  }
}

bool StreamMark::has_come() const {
  return !event_ || event_->query();
}

void StreamMark::wait() const {
  if (event_) {
    // A thread that has not chosen a device would wake up the first.
    const c10::DeviceGuard guard(device_);
    event_->synchronize();
  }
}

} // namespace hvd
