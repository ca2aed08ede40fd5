#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

namespace hvd {

/// While it lives, the thread rounds to nearest and keeps denormal numbers.
class PlainFloats {
 public:
  PlainFloats();
  PlainFloats(const PlainFloats&) = delete;
  PlainFloats& operator=(const PlainFloats&) = delete;
  ~PlainFloats();

 private:
  const uint64_t found_; ///< the processor's control register
};

/// While it lives, what the thread computes is the same whatever its user has
/// set for it: the results are data, which autograd and dispatch modes must not
/// see written, and every rank must get the same bits, whoever drives.
class NeutralThread {
  const at::AutoDispatchBelowADInplaceOrView no_autograd_;
  const c10::impl::ExcludeDispatchKeyGuard no_modes_{c10::DispatchKeySet(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
  const PlainFloats plain_floats_;
};

} // namespace hvd
