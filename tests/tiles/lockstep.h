#pragma once

// A team (csrc/cuda/warp.h) whose 32 lanes are played by one thread.

#include "codec/elements.h"
#include "cuda/tile.h"

#include <array>

namespace hvd {

class Lockstep {
 public:
  template <typename T>
  using PerLane = std::array<T, kLanes>;

  template <typename F>
  HVD_HOST_DEVICE void each(F&& f) const {
    for (int lane = 0; lane < kLanes; ++lane) {
      f(lane);
    }
  }

  template <typename T>
  HVD_HOST_DEVICE T read(const PerLane<T>& x, int lane) const {
    return x.at(lane);
  }

  HVD_HOST_DEVICE bool any(const PerLane<bool>& flags) const {
    bool found = false;
    for (bool flag : flags) {
      found |= flag;
    }
    return found;
  }

  HVD_HOST_DEVICE void meet() const {}
};

} // namespace hvd
