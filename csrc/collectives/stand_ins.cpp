#include "collectives/stand_ins.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace hvd {

namespace {

/// Runs `copy`, where there is a device on a stream behind the caller's. Copies
/// between host and device block this thread.
template <typename Copy>
void staged(const Collective& collective, Copy copy) {
  std::optional<c10::StreamGuard> on_stream;
  if (collective.on_device) {
    const auto device = collective.on_device->device();
    const c10::impl::VirtualGuardImpl guard(device.type());
    on_stream.emplace(guard.getStreamFromGlobalPool(device));
    collective.on_device->hold_current();
  }
  copy();
}

} // namespace

void fill_stand_ins(const Collective& collective) {
  if (collective.copy_in.empty()) {
    return;
  }
  staged(collective, [&] {
    for (const auto& [to, from, factor] : collective.copy_in) {
      to.copy_(factor.defined() ? from.mul(factor.cpu()) : from);
    }
  });
}

void copy_back(const Collective& collective) {
  if (collective.copy_back.empty()) {
    return;
  }
  staged(collective, [&] {
    for (const auto& [to, from] : collective.copy_back) {
      to.copy_(from);
    }
  });
}

} // namespace hvd
