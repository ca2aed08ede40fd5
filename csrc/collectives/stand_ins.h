#pragma once

#include "common/collective.h"

#include <functional>

namespace hvd {

/// What the collective reads is there when this returns: stand-ins for tensors
/// of the caller are filled, and the device is done with those that stay there.
void make_ready(const Collective& collective);

/// Hands the outputs that stand for tensors of the caller over to those.
void copy_back(const Collective& collective);

/// Copies between tensors of the caller and their stand-ins, or among either.
/// Where there is a device that is done on a stream behind the caller's. All is
/// there when this returns.
void copy_apart(
    const Collective& collective,
    const std::function<void()>& copies);

} // namespace hvd
