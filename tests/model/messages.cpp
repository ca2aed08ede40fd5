#include "messages.h"

#include "require.h"

#include <ATen/ops/empty.h>

namespace hvd::model {

namespace {

constexpr std::chrono::seconds kForEver{100};

/// What byte `place` of message `number` from a rank is.
uint8_t byte_of(uint64_t number, int from, int64_t place) {
  return static_cast<uint8_t>(
      number * 31 + from * 7 + place * 13 + place / 256);
}

} // namespace

Deadline for_ever() {
  return Clock::now() + kForEver;
}

at::Tensor message(uint64_t number, int from, int64_t bytes) {
  auto tensor = at::empty({bytes}, at::kByte);
  auto* const to = tensor.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < bytes; ++i) {
    to[i] = byte_of(number, from, i);
  }
  return tensor;
}

void check(const void* data, int64_t size, uint64_t number, int from) {
  const auto* const bytes = static_cast<const uint8_t*>(data);
  for (int64_t i = 0; i < size; ++i) {
    REQUIRE(bytes[i] == byte_of(number, from, i));
  }
}

void check(const at::Tensor& tensor, uint64_t number, int from) {
  check(tensor.const_data_ptr(), tensor.numel(), number, from);
}

} // namespace hvd::model
