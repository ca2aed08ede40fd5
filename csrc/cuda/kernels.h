#pragma once

// No header of torch here: nvcc reads this, too.

#include "codec/device.h"

namespace hvd::cuda {

// The functions of DeviceKernels; streams are cudaStream_t of the current
// device.

void encode(
    Codec codec,
    Number number,
    const DeviceKernels::Piece* pieces,
    int64_t size,
    float factor,
    DeviceKernels::Stream stream);

void decode(
    Codec codec,
    Number number,
    const DeviceKernels::Piece* pieces,
    int64_t size,
    DeviceKernels::Stream stream);

void decode_sum_encode(
    Codec codec,
    const DeviceKernels::Source* sources,
    int64_t size,
    int64_t count,
    uint8_t* values,
    uint8_t* scales,
    float* residual,
    DeviceKernels::Stream stream);

void copy(
    const DeviceKernels::Copy* copies,
    int64_t size,
    DeviceKernels::Stream stream);

} // namespace hvd::cuda
