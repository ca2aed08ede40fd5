#pragma once

// How a lane reads and writes its four: at once where the address allows it and
// all four exist, else one after the other. Numbers and residuals are aligned
// as their type is, bytes of a message need not be.

#include "codec/elements.h"
#include "codec/fours.h"
#include "cuda/tile.h"

#include <cstdint>

namespace hvd {

/// Lets the compiler leave out the question which memory it is.
template <typename T>
HVD_HOST_DEVICE T* global(T* address) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(address));
#endif
  return address;
}

HVD_HOST_DEVICE bool is_aligned(const void* address, int bytes) {
  return (reinterpret_cast<uintptr_t>(address) & (bytes - 1)) == 0;
}

/// `n` units of type Unit, from the lowest bits of Whole up.
template <typename Unit, typename Whole>
HVD_HOST_DEVICE Whole load_units(const void* from, int n) {
  constexpr int kUnits = sizeof(Whole) / sizeof(Unit);
  if (n == kUnits && is_aligned(from, sizeof(Whole))) {
    return *global(static_cast<const Whole*>(from));
  }
  const auto* const units = global(static_cast<const Unit*>(from));
  Whole whole = 0;
  HVD_UNROLL
  for (int i = 0; i < kUnits; ++i) {
    if (i < n) {
      whole |= static_cast<Whole>(units[i]) << (8 * sizeof(Unit) * i);
    }
  }
  return whole;
}

template <typename Unit, typename Whole>
HVD_HOST_DEVICE void store_units(Whole whole, void* to, int n) {
  constexpr int kUnits = sizeof(Whole) / sizeof(Unit);
  if (n == kUnits && is_aligned(to, sizeof(Whole))) {
    *global(static_cast<Whole*>(to)) = whole;
    return;
  }
  auto* const units = global(static_cast<Unit*>(to));
  HVD_UNROLL
  for (int i = 0; i < kUnits; ++i) {
    if (i < n) {
      units[i] = static_cast<Unit>(whole >> (8 * sizeof(Unit) * i));
    }
  }
}

/// 16 bytes at a multiple of 16.
HVD_HOST_DEVICE Four load_aligned(const void* from) {
#if defined(__CUDA_ARCH__)
  const float4 all = *global(static_cast<const float4*>(from));
  return {{all.x, all.y, all.z, all.w}};
#else
  return *static_cast<const Four*>(from);
#endif
}

HVD_HOST_DEVICE void store_aligned(const Four& four, void* to) {
#if defined(__CUDA_ARCH__)
  *global(static_cast<float4*>(to)) = make_float4(
      four.values[0], four.values[1], four.values[2], four.values[3]);
#else
  *static_cast<Four*>(to) = four;
#endif
}

HVD_HOST_DEVICE Four load_floats(const float* from, int n) {
  if (n == kFour && is_aligned(from, sizeof(Four))) {
    return load_aligned(from);
  }
  Four four{};
  HVD_UNROLL
  for (int i = 0; i < kFour; ++i) {
    if (i < n) {
      four.values[i] = global(from)[i];
    }
  }
  return four;
}

HVD_HOST_DEVICE void store_floats(const Four& four, float* to, int n) {
  if (n == kFour && is_aligned(to, sizeof(Four))) {
    store_aligned(four, to);
    return;
  }
  HVD_UNROLL
  for (int i = 0; i < kFour; ++i) {
    if (i < n) {
      global(to)[i] = four.values[i];
    }
  }
}

/// Four of 16 bits on their way, in the place of four floats.
HVD_HOST_DEVICE Four unopened(uint64_t four) {
  return {
      {float_of(static_cast<uint32_t>(four)),
       float_of(static_cast<uint32_t>(four >> 32)),
       0,
       0}};
}

/// Numbers as they are; load() and as_floats() are apart so that many loads are
/// under way before the first is looked at.
HVD_HOST_DEVICE Four load(Number number, const void* numbers, int at, int n) {
  if (number == Number::Float32) {
    return load_floats(static_cast<const float*>(numbers) + at, n);
  }
  return unopened(
      load_units<uint16_t, uint64_t>(
          static_cast<const uint16_t*>(numbers) + at, n));
}

HVD_HOST_DEVICE Four as_floats(Number number, const Four& loaded) {
  if (number == Number::Float32) {
    return loaded;
  }
  const uint64_t codes =
      uint64_t{bits_of(loaded.values[1])} << 32 | bits_of(loaded.values[0]);
  return number == Number::Float16 ? Fours<HalfCast>::decode(codes)
                                   : Fours<BFloat16Cast>::decode(codes);
}

HVD_HOST_DEVICE void store(
    Number number,
    const Four& four,
    void* numbers,
    int at,
    int n) {
  if (number == Number::Float32) {
    store_floats(four, static_cast<float*>(numbers) + at, n);
    return;
  }
  const uint64_t codes = number == Number::Float16
      ? Fours<HalfCast>::encode(four)
      : Fours<BFloat16Cast>::encode(four);
  store_units<uint16_t>(codes, static_cast<uint16_t*>(numbers) + at, n);
}

/// Bytes that `n` values take.
template <typename Element>
HVD_HOST_DEVICE constexpr int bytes_of_values(int n) {
  return (n * Element::kBits + 7) / 8;
}

template <typename Element>
HVD_HOST_DEVICE typename Fours<Element>::Codes load_codes(
    const uint8_t* values,
    int at,
    int n) {
  return load_units<uint8_t, typename Fours<Element>::Codes>(
      values + bytes_of_values<Element>(at), bytes_of_values<Element>(n));
}

template <typename Element>
HVD_HOST_DEVICE void store_codes(
    typename Fours<Element>::Codes codes,
    uint8_t* values,
    int at,
    int n) {
  store_units<uint8_t>(
      codes,
      values + bytes_of_values<Element>(at),
      bytes_of_values<Element>(n));
}

HVD_HOST_DEVICE uint32_t load_scale(const uint8_t* scales, int block) {
  return load_units<uint8_t, uint16_t>(scales + 2 * block, 2);
}

HVD_HOST_DEVICE void store_scale(uint32_t scale, uint8_t* scales, int block) {
  store_units<uint8_t>(static_cast<uint16_t>(scale), scales + 2 * block, 2);
}

} // namespace hvd
