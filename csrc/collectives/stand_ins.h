#pragma once

#include "common/collective.h"

#include <functional>

namespace hvd {

/// Whether make_ready() would wait for a device now.
bool waits_for_device(const Collective& collective) noexcept;

/// What the collective reads is there when this returns: stand-ins for tensors
/// of the caller are filled, and the device is done with those that stay there.
void make_ready(const Collective& collective);

/// Hands the outputs that stand for tensors of the caller over to those.
void copy_back(const Collective& collective);

/// Copies between tensors of the caller and their stand-ins, or among either.
/// `on_device`: the moment when the caller has computed those that are on one,
/// else null; then that is done on a stream behind it. All is there when this
/// returns.
void copy_apart(
    const StreamMark* on_device,
    const std::function<void()>& copies);

} // namespace hvd
