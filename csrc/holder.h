#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/utils/pybind.h>

namespace hvd {

/// A pybind11 holder like the one torch gives its process groups: releases the
/// GIL before the last reference goes, because the destructor joins threads
/// that may want it. torch reads it as the intrusive_ptr it consists of.
template <typename T>
class NoGilHolder {
 public:
  NoGilHolder() = default;
  explicit NoGilHolder(T* raw)
      : pointer_(c10::intrusive_ptr<T>::unsafe_steal_from_new(raw)) {}
  NoGilHolder(c10::intrusive_ptr<T> pointer) : pointer_(std::move(pointer)) {}
  NoGilHolder(const NoGilHolder&) = default;
  NoGilHolder(NoGilHolder&&) noexcept = default;
  NoGilHolder& operator=(const NoGilHolder&) = default;
  NoGilHolder& operator=(NoGilHolder&&) noexcept = default;

  ~NoGilHolder() {
    if (pointer_ && PyGILState_Check() != 0) {
      pybind11::gil_scoped_release no_gil;
      pointer_.reset();
    }
  }

  T* get() const {
    return pointer_.get();
  }

 private:
  c10::intrusive_ptr<T> pointer_;
};

} // namespace hvd

PYBIND11_DECLARE_HOLDER_TYPE(T, hvd::NoGilHolder<T>, true)
