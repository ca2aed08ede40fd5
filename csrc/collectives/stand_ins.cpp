#include "collectives/stand_ins.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>

namespace hvd {

bool waits_for_device(const Collective& collective) noexcept {
  try {
    return collective.on_device && !collective.on_device->has_come();
  } catch (const std::exception&) {
    return false; // make_ready() throws that
  }
}

void make_ready(const Collective& collective) {
  if (collective.stays_on_device) {
    collective.on_device->wait(); // no transport knows of streams
  }
  if (collective.copy_in.empty()) {
    return;
  }
  copy_apart(collective.on_device.get(), [&] {
    for (const auto& [to, from, factor] : collective.copy_in) {
      to.copy_(factor.defined() ? from.mul(factor.cpu()) : from);
    }
  });
}

void copy_back(const Collective& collective) {
  if (collective.copy_back.empty()) {
    return;
  }
  copy_apart(collective.on_device.get(), [&] {
    for (const auto& [to, from] : collective.copy_back) {
      to.copy_(from);
    }
  });
}

void copy_apart(
    const StreamMark* on_device,
    const std::function<void()>& copies) {
  if (on_device == nullptr) {
    copies();
    return;
  }
  const auto device = on_device->device();
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::StreamGuard on_stream(guard.getStreamFromGlobalPool(device));
  on_device->hold_current();
  copies();
  StreamMark(device).wait(); // copies inside a device return at once
}

} // namespace hvd
