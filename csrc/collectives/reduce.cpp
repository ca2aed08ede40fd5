// The loops that sum. The rest of the module is compiled with -O2.
#pragma GCC optimize("O3")

#include "collectives/reduce.h"

#include "codec/kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <type_traits>

namespace hvd {

namespace {

/// Elements folded at a time: accumulators stay in the first-level cache.
constexpr int64_t kBlock = 1024;

/// What elements are folded in, and the codec, if any, that widens them to it.
template <typename T>
struct Accumulation {
  using type = T;
};
template <>
struct Accumulation<c10::Half> {
  using type = float;
  static constexpr auto kCast = Compression::Fp16;
};
template <>
struct Accumulation<c10::BFloat16> {
  using type = float;
  static constexpr auto kCast = Compression::Bf16;
};
template <>
struct Accumulation<c10::complex<c10::Half>> {
  using type = c10::complex<float>;
};

template <typename T>
using Accumulator = typename Accumulation<T>::type;

template <typename T>
constexpr bool kIsWidened = !std::is_same_v<Accumulator<T>, T>;
template <typename T>
constexpr bool kHasCodec = requires { Accumulation<T>::kCast; };

// The codec's kernels take multiples of this.
constexpr int64_t kUnit = 32;

// Chosen by hand, not by target_clones: where symbols are stripped (-s), the
// linker of binutils 2.38 leaves the jumps to what the loader chooses empty.
#if defined(__x86_64__)
#define HVD_AVX2 __attribute__((target("avx2")))
#else
#define HVD_AVX2
#endif

/// `from` as accumulators: itself, or widened into `room`.
template <typename T>
const Accumulator<T>* widen(
    const T* from,
    int64_t count,
    std::array<Accumulator<T>, kBlock>& room) {
  if constexpr (kIsWidened<T>) {
    int64_t done = 0;
    if constexpr (kHasCodec<T>) {
      done = count - count % kUnit;
      const auto* bytes = reinterpret_cast<const uint8_t*>(from);
      kernels()[Accumulation<T>::kCast].decode(
          bytes, nullptr, done, kUnit, room.data());
    }
    std::copy(from + done, from + count, room.begin() + done);
    return room.data();
  } else {
    return from;
  }
}

template <typename T>
void narrow(const Accumulator<T>* from, int64_t count, T* to) {
  int64_t done = 0;
  if constexpr (kHasCodec<T>) {
    done = count - count % kUnit;
    auto* bytes = reinterpret_cast<uint8_t*>(to);
    kernels()[Accumulation<T>::kCast].encode(from, done, kUnit, bytes, nullptr);
  }
  std::transform(from + done, from + count, to + done, [](const auto& number) {
    return static_cast<T>(number);
  });
}

/// NaN wins, as in torch.minimum and torch.maximum.
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return (a < b || a != a) ? a : b;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return (a > b || a != a) ? a : b;
  }
};

/// Of integers towards zero, as NCCL does.
template <typename Acc>
Acc divided(Acc sum, int divisor) {
  if constexpr (std::is_integral_v<Acc>) {
    return static_cast<Acc>(sum / divisor);
  } else {
    return static_cast<Acc>(sum / static_cast<Acc>(divisor));
  }
}

template <typename Acc, typename Fold>
__attribute__((always_inline)) inline void combine_each(
    const Acc* a,
    const Acc* b,
    int64_t count,
    Fold op,
    Acc* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<Acc>(op(a[i], b[i]));
  }
}

/// For processors with AVX2; by AVX-512 a sum takes as long.
template <typename Acc, typename Fold>
HVD_AVX2 void combine_wide(
    const Acc* a,
    const Acc* b,
    int64_t count,
    Fold op,
    Acc* to) {
  combine_each(a, b, count, op, to);
}

template <typename Acc, typename Fold>
__attribute__((noinline)) void combine(
    const Acc* a,
    const Acc* b,
    int64_t count,
    Fold op,
    Acc* to) {
  if (avx2_kernels() != nullptr) {
    combine_wide(a, b, count, op, to);
  } else {
    combine_each(a, b, count, op, to);
  }
}

template <typename T, typename Out, typename Fold>
void fold(
    const std::vector<const void*>& sources,
    void* out,
    int64_t count,
    Fold op,
    int divisor) {
  using Acc = Accumulator<T>;
  const auto source = [&](size_t rank) {
    return static_cast<const T*>(sources[rank]);
  };
  if constexpr (!kIsWidened<T> && std::is_same_v<T, Out>) {
    if (sources.size() == 2 && divisor == 1) {
      combine(source(0), source(1), count, op, static_cast<Out*>(out));
      return;
    }
  }
  std::array<Acc, kBlock> acc;
  std::array<Acc, kBlock> room;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const Acc* folded = widen(source(0) + begin, n, acc);
    for (size_t r = 1; r < sources.size(); ++r) {
      combine(folded, widen(source(r) + begin, n, room), n, op, acc.data());
      folded = acc.data();
    }
    if (divisor != 1) {
      for (int64_t i = 0; i < n; ++i) {
        acc[i] = divided(folded[i], divisor);
      }
      folded = acc.data();
    }
    narrow(folded, n, static_cast<Out*>(out) + begin);
  }
}

/// What an element type allows, beside SUM and PRODUCT.
template <typename T>
constexpr bool kHasAverage = !std::is_same_v<T, bool>;
template <typename T>
constexpr bool kHasOrder = !c10::is_complex<T>::value;
template <typename T>
constexpr bool kHasBits = std::is_integral_v<T>;
template <typename T>
constexpr bool kHasScale = !std::is_integral_v<T>;

/// Calls `visit(fold_function, divides)` with the fold of `op` on T; returns
/// false when there is none.
template <typename T, typename Visit>
bool with_fold(ReduceOp op, Visit visit) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return visit(std::plus<>(), false);
    case c10d::ReduceOp::AVG:
      if constexpr (kHasAverage<T>) {
        return visit(std::plus<>(), true);
      }
      return false;
    case c10d::ReduceOp::PREMUL_SUM:
      if constexpr (kHasScale<T>) {
        return visit(std::plus<>(), false);
      }
      return false;
    case c10d::ReduceOp::PRODUCT:
      return visit(std::multiplies<>(), false);
    case c10d::ReduceOp::MIN:
      if constexpr (kHasOrder<T>) {
        return visit(Min(), false);
      }
      return false;
    case c10d::ReduceOp::MAX:
      if constexpr (kHasOrder<T>) {
        return visit(Max(), false);
      }
      return false;
    case c10d::ReduceOp::BAND:
      if constexpr (kHasBits<T>) {
        return visit(std::bit_and<>(), false);
      }
      return false;
    case c10d::ReduceOp::BOR:
      if constexpr (kHasBits<T>) {
        return visit(std::bit_or<>(), false);
      }
      return false;
    case c10d::ReduceOp::BXOR:
      if constexpr (kHasBits<T>) {
        return visit(std::bit_xor<>(), false);
      }
      return false;
    default:
      return false;
  }
}

template <typename T>
struct Type {
  using type = T;
};

/// Calls `visit(Type<T>())` with the C++ type of `dtype`; returns false for a
/// dtype that cannot be reduced.
template <typename Visit>
bool with_type(at::ScalarType dtype, Visit visit) {
  switch (dtype) {
    case at::kDouble:
      return visit(Type<double>());
    case at::kFloat:
      return visit(Type<float>());
    case at::kHalf:
      return visit(Type<c10::Half>());
    case at::kBFloat16:
      return visit(Type<c10::BFloat16>());
    case at::kLong:
      return visit(Type<int64_t>());
    case at::kInt:
      return visit(Type<int32_t>());
    case at::kShort:
      return visit(Type<int16_t>());
    case at::kChar:
      return visit(Type<int8_t>());
    case at::kByte:
      return visit(Type<uint8_t>());
    case at::kBool:
      return visit(Type<bool>());
    case at::kComplexHalf:
      return visit(Type<c10::complex<c10::Half>>());
    case at::kComplexFloat:
      return visit(Type<c10::complex<float>>());
    case at::kComplexDouble:
      return visit(Type<c10::complex<double>>());
    default:
      return false;
  }
}

/// Calls `visit(Type<Out>())` with the C++ type of `to` for elements of T.
template <typename T, typename Visit>
bool with_result_type(at::ScalarType to, Visit visit) {
  if (to == c10::CppTypeToScalarType<T>::value) {
    return visit(Type<T>());
  }
  if constexpr (kIsWidened<T>) {
    return visit(Type<Accumulator<T>>());
  } else if constexpr (std::is_same_v<T, float>) {
    return to == at::kHalf ? visit(Type<c10::Half>())
                           : visit(Type<c10::BFloat16>());
  } else if constexpr (std::is_same_v<T, c10::complex<float>>) {
    return visit(Type<c10::complex<c10::Half>>());
  }
  return false;
}

} // namespace

at::ScalarType accumulation_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
    case at::kBFloat16:
      return at::kFloat;
    case at::kComplexHalf:
      return at::kComplexFloat;
    default:
      return dtype;
  }
}

bool can_reduce(at::ScalarType dtype, ReduceOp op) {
  return with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return with_fold<T>(op, [](auto, bool) { return true; });
  });
}

void reduce_in_order(
    const Reduction& reduction,
    const std::vector<const void*>& sources,
    void* out,
    int64_t count) {
  const bool reduced = with_type(reduction.from, [&](auto type) {
    using T = typename decltype(type)::type;
    return with_fold<T>(reduction.op, [&](auto fold_op, bool divides) {
      const int divisor = divides ? reduction.divisor : 1;
      return with_result_type<T>(reduction.to, [&](auto result_type) {
        using Out = typename decltype(result_type)::type;
        fold<T, Out>(sources, out, count, fold_op, divisor);
        return true;
      });
    });
  });
  TORCH_INTERNAL_ASSERT(
      reduced,
      name(reduction.op),
      " on ",
      reduction.from,
      " passed the checks");
}

} // namespace hvd
