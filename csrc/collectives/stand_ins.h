#pragma once

#include "common/collective.h"

namespace hvd {

/// Fills the inputs that stand for tensors of the caller. Those on a device are
/// copied on a stream that waits for what the caller had put on theirs, and are
/// there when this returns.
void fill_stand_ins(const Collective& collective);

/// Hands the outputs that stand for tensors of the caller over to those; they
/// are there when this returns.
void copy_back(const Collective& collective);

} // namespace hvd
