#include "common/neutral_thread.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace hvd {

namespace {

#if defined(__x86_64__)

// MXCSR: flush to zero, denormals are zeros, the rounding mode.
constexpr uint64_t kUnplain = 0x8000 | 0x0040 | 0x6000;

uint64_t control() {
  return _mm_getcsr();
}

void set_control(uint64_t control) {
  _mm_setcsr(static_cast<unsigned>(control));
}

#elif defined(__aarch64__)

// FPCR: flush to zero, the same of 16 bits, the rounding mode.
constexpr uint64_t kUnplain = 1 << 24 | 1 << 19 | 3 << 22;

uint64_t control() {
  uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
}

void set_control(uint64_t control) {
  asm volatile("msr fpcr, %0" : : "r"(control));
}

#else

constexpr uint64_t kUnplain = 0;

uint64_t control() {
  return 0;
}

void set_control(uint64_t /*control*/) {}

#endif

} // namespace

PlainFloats::PlainFloats() : found_(control()) {
  if ((found_ & kUnplain) != 0) {
    set_control(found_ & ~kUnplain);
  }
}

PlainFloats::~PlainFloats() {
  if ((found_ & kUnplain) != 0) {
    set_control(found_);
  }
}

} // namespace hvd
