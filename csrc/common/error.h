#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace hvd {

/// A torch.distributed.DistBackendError to throw later, on another thread.
inline std::exception_ptr backend_error(const std::string& message) {
  return std::make_exception_ptr(
      c10::DistBackendError(
          {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message));
}

} // namespace hvd
