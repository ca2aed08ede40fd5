#pragma once

// The team of 32 lanes that the functions on tiles are written for. A team has
//
//   PerLane<T>       a value of each lane, `x[lane]`
//   each(f)          f(lane) for all lanes
//   read(x, lane)    that lane's value, within each(); all lanes must ask
//   any(flags)       whether one of them is true
//   meet()           what was read or written before it is, for all lanes
//
// and between two calls of each() no lane is ahead of another. Here a team is a
// warp; in tests it is one thread that plays all lanes.

#include <cstdint>

namespace hvd {

class Warp {
 public:
  /// A lane has a register and knows no other lane's.
  template <typename T>
  struct PerLane {
    T mine;

    __device__ __forceinline__ T& operator[](int) {
      return mine;
    }
    __device__ __forceinline__ const T& operator[](int) const {
      return mine;
    }
  };

  __device__ __forceinline__ Warp()
      : lane_(static_cast<int>(threadIdx.x) & 31) {}

  template <typename F>
  __device__ __forceinline__ void each(F&& f) const {
    f(lane_);
  }

  template <typename T>
  __device__ __forceinline__ T read(const PerLane<T>& x, int lane) const {
    return __shfl_sync(kAll, x.mine, lane);
  }

  __device__ __forceinline__ bool any(const PerLane<bool>& flags) const {
    return __any_sync(kAll, flags.mine) != 0;
  }

  __device__ __forceinline__ void meet() const {
    __syncwarp();
  }

 private:
  static constexpr uint32_t kAll = 0xffffffff;

  const int lane_;
};

} // namespace hvd
