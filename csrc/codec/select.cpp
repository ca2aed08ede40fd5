#include "codec/kernels.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <atomic>

namespace hvd {

namespace {

/// Widest last.
const std::vector<const Kernels*>& supported() {
  static const auto all = [] {
    std::vector<const Kernels*> found;
    for (const auto* set :
         {plain_kernels(), avx2_kernels(), avx512_kernels()}) {
      if (set != nullptr) {
        found.push_back(set);
      }
    }
    return found;
  }();
  return all;
}

std::atomic<const Kernels*>& chosen() {
  static std::atomic<const Kernels*> set{supported().back()};
  return set;
}

} // namespace

const Kernels& kernels() {
  return *chosen().load(std::memory_order_relaxed);
}

std::vector<std::string> simd_names() {
  std::vector<std::string> names;
  for (const auto* set : supported()) {
    names.emplace_back(set->name);
  }
  return names;
}

void use_simd(const std::string& name) {
  for (const auto* set : supported()) {
    if (name == set->name) {
      chosen() = set;
      return;
    }
  }
  TORCH_CHECK_VALUE(
      false,
      "hvd: no kernels \"",
      name,
      "\"; this processor has ",
      c10::Join(", ", simd_names()));
}

} // namespace hvd
