#pragma once

#include "transport/transport.h"

#include <cstdint>

namespace hvd::model {

/// Bytes of the longest message that is copied aside over shared memory.
constexpr int64_t kLongestStaged = 256 * 1024;

/// When a test that hangs ends.
Deadline for_ever();

/// Message `number` of so many bytes from a rank.
at::Tensor message(uint64_t number, int from, int64_t bytes);

/// Ends the process where this is not that message.
void check(const void* data, int64_t size, uint64_t number, int from);
void check(const at::Tensor& tensor, uint64_t number, int from);

} // namespace hvd::model
