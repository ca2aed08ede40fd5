// Kernels for AVX2 with the conversions of fp16 and fused multiplication.

#include "codec/kernels.h"

#if defined(__x86_64__)

#define HVD_TARGET __attribute__((target("avx2,fma,f16c")))
#include "codec/blocks.h"

#include <immintrin.h>

#include <type_traits>

namespace hvd {

namespace {

HVD_TARGET inline __m256i words(uint32_t bits) {
  return _mm256_set1_epi32(static_cast<int32_t>(bits));
}

HVD_TARGET inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

HVD_TARGET inline __m128i load_half(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

HVD_TARGET inline void store(void* to, __m256i bits) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), bits);
}

/// 8 scaled values as codes in words that fit 16 bits with sign; those of small
/// floats as SmallFloat::kRounder has it.
template <typename Element>
HVD_TARGET inline __m256i round_to_words(const float* in, __m256 r) {
  const __m256 value = _mm256_mul_ps(_mm256_loadu_ps(in), r);
  if constexpr (kIsInteger<Element>) {
    return _mm256_cvtps_epi32(value);
  } else {
    using Format = typename Element::Format;
    const __m256i bits = _mm256_castps_si256(value);
    // The larger magnitude, with the sign of the value.
    const __m256i normal = _mm256_max_epu32(
        bits,
        _mm256_or_si256(
            _mm256_and_si256(bits, words(~kMagnitudeBits)),
            words(Format::kNormal)));
    const __m256 power = _mm256_castsi256_ps(
        _mm256_and_si256(normal, words(kInfinityBits | ~kMagnitudeBits)));
    const __m256 rounded =
        _mm256_fmadd_ps(power, _mm256_set1_ps(Format::kRounder), value);
    return _mm256_madd_epi16(
        _mm256_castps_si256(rounded), words(1U << 16 | Format::kLowerWeight));
  }
}

/// 16 values as codes in 16 bits, in the order of packs.
template <typename Element>
HVD_TARGET inline __m256i round_to_halves(const float* in, __m256 r) {
  const __m256i both = _mm256_packs_epi32(
      round_to_words<Element>(in, r), round_to_words<Element>(in + 8, r));
  if constexpr (kIsInteger<Element>) {
    return both;
  } else {
    // Of a code its byte and, in the next one, its sign.
    constexpr int kShift = Element::Format::kCodeShift;
    return _mm256_maddubs_epi16(
        _mm256_srli_epi16(both, kShift),
        _mm256_set1_epi16(1 << (8 + kShift) | 1));
  }
}

template <typename Element>
HVD_TARGET inline void encode_32(const float* in, __m256 r, uint8_t* out) {
  const __m256i first = round_to_halves<Element>(in, r);
  const __m256i second = round_to_halves<Element>(in + 16, r);
  const __m256i mixed = kIsInteger<Element>
      ? _mm256_packs_epi16(first, second)
      : _mm256_packus_epi16(first, second);
  // Each 128 bits hold a half of each of the four vectors.
  const __m256i bytes = _mm256_permutevar8x32_epi32(
      mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  if constexpr (Element::kBits == 8) {
    store(out, bytes);
  } else {
    const __m256i low = _mm256_and_si256(bytes, _mm256_set1_epi16(0xf));
    const __m256i high =
        _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi16(0xf0));
    const __m256i pairs = _mm256_or_si256(low, high);
    const __m256i packed =
        _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0b1000);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(packed));
  }
}

/// Bytes of ones where one of 32 codes is not finite, or a pair has such a one.
template <typename Element>
HVD_TARGET inline __m256i not_finite(__m256i codes) {
  if constexpr (std::is_same_v<Element, Int8>) {
    return _mm256_cmpeq_epi8(codes, _mm256_set1_epi8(-128));
  } else if constexpr (std::is_same_v<Element, Int4>) {
    const __m256i low = _mm256_and_si256(codes, _mm256_set1_epi8(0xf));
    const __m256i high = _mm256_andnot_si256(_mm256_set1_epi8(0xf), codes);
    return _mm256_or_si256(
        _mm256_cmpeq_epi8(low, _mm256_set1_epi8(8)),
        _mm256_cmpeq_epi8(high, _mm256_set1_epi8(-128)));
  } else {
    constexpr char last =
        (std::is_same_v<Element, E4m3> ? E4m3::kNan : E5m2::kInfinity) - 1;
    return _mm256_cmpgt_epi8(
        _mm256_and_si256(codes, _mm256_set1_epi8(0x7f)),
        _mm256_set1_epi8(last));
  }
}

/// 16 small floats as fp16, E4m3 times 2^-8.
template <typename Element>
HVD_TARGET inline __m256i as_halves(const uint8_t* in) {
  if constexpr (std::is_same_v<Element, E5m2>) {
    return _mm256_slli_epi16(_mm256_cvtepu8_epi16(load_half(in)), 8);
  } else {
    // Sign and four bits of exponent to where five have their place.
    return _mm256_and_si256(
        _mm256_slli_epi16(_mm256_cvtepi8_epi16(load_half(in)), 7),
        _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
  }
}

template <Write kWrite>
HVD_TARGET inline void put(__m256 number, float* out) {
  if constexpr (kWrite == Write::Stream) {
    _mm256_stream_ps(out, number);
  } else {
    _mm256_storeu_ps(out, number);
  }
}

template <Write kWrite>
HVD_TARGET inline void place(__m256 number, __m256 scale, float* out) {
  put<kWrite>(
      kWrite == Write::Add
          ? _mm256_fmadd_ps(number, scale, _mm256_loadu_ps(out))
          : _mm256_mul_ps(number, scale),
      out);
}

template <Write kWrite>
HVD_TARGET inline void place(__m256 number, float* out) {
  put<kWrite>(
      kWrite == Write::Add ? _mm256_add_ps(_mm256_loadu_ps(out), number)
                           : number,
      out);
}

struct Rows {
  static void fence() {
    _mm_sfence();
  }

  using Most = __m128i;

  template <int64_t kUnit>
  HVD_TARGET static Most most(const float* in) {
    __m256i even = _mm256_setzero_si256();
    __m256i odd = even;
    for (int64_t i = 0; i < kUnit; i += 16) {
      __builtin_prefetch(in + i + kAhead);
      even = _mm256_max_epi32(
          even, _mm256_and_si256(load(in + i), words(kMagnitudeBits)));
      odd = _mm256_max_epi32(
          odd, _mm256_and_si256(load(in + i + 8), words(kMagnitudeBits)));
    }
    const __m256i eight = _mm256_max_epi32(even, odd);
    return _mm_max_epi32(
        _mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  }

  HVD_TARGET static Most larger(Most a, Most b) {
    return _mm_max_epi32(a, b);
  }

  /// By 8: what is stored as one vector is soon loaded as one.
  HVD_TARGET static void largest(Most* most, int64_t count, uint32_t* out) {
    for (int64_t i = count; i % 8 != 0; ++i) {
      most[i] = _mm_setzero_si128();
    }
    for (int64_t i = 0; i < count; i += 8) {
      store(
          out + i,
          _mm256_set_m128i(largest_of_4(most + i + 4), largest_of_4(most + i)));
    }
  }

  /// The largest lane of each of four vectors, in their order.
  HVD_TARGET static __m128i largest_of_4(const __m128i* of) {
    const __m128i ab = _mm_max_epi32(
        _mm_unpacklo_epi32(of[0], of[1]), _mm_unpackhi_epi32(of[0], of[1]));
    const __m128i cd = _mm_max_epi32(
        _mm_unpacklo_epi32(of[2], of[3]), _mm_unpackhi_epi32(of[2], of[3]));
    return _mm_max_epi32(
        _mm_unpacklo_epi64(ab, cd), _mm_unpackhi_epi64(ab, cd));
  }

  template <typename Element, int64_t kUnit>
  HVD_TARGET static void encode(
      const float* in,
      float reciprocal,
      uint8_t* out) {
    const __m256 r = _mm256_set1_ps(reciprocal);
    for (int64_t i = 0; i < kUnit; i += 32) {
      encode_32<Element>(in + i, r, out + i * Element::kBits / 8);
    }
  }

  template <typename Element>
  HVD_TARGET static bool all_finite(const uint8_t* in, int64_t n) {
    __m256i bad = _mm256_setzero_si256();
    const int64_t bytes = n * Element::kBits / 8;
    int64_t i = 0;
    for (; i + 32 <= bytes; i += 32) {
      bad = _mm256_or_si256(bad, not_finite<Element>(load(in + i)));
    }
    if (i < bytes) { // one block of 32 values of 4 bits
      bad = not_finite<Element>(
          _mm256_set_m128i(_mm_setzero_si128(), load_half(in + i)));
    }
    return _mm256_testz_si256(bad, bad) != 0;
  }

  /// By 32, the least that a block has: its loop is short, and so counts.
  template <typename Element, Write kWrite>
  HVD_TARGET static void decode(
      const uint8_t* in,
      float scale,
      int64_t n,
      float* out) {
    if constexpr (kIsInteger<Element>) {
      const __m256 s = _mm256_set1_ps(scale);
#pragma GCC unroll 4
      for (int64_t i = 0; i < n; i += 8) {
        const __m256i numbers = integers<Element>(in + i * Element::kBits / 8);
        place<kWrite>(_mm256_cvtepi32_ps(numbers), s, out + i);
      }
    } else {
      const __m256 s = _mm256_set1_ps(
          std::is_same_v<Element, E4m3> ? scale * 0x1p8F : scale);
#pragma GCC unroll 2
      for (int64_t i = 0; i < n; i += 16) {
        const __m256i halves = as_halves<Element>(in + i);
        place<kWrite>(
            _mm256_cvtph_ps(_mm256_castsi256_si128(halves)), s, out + i);
        place<kWrite>(
            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)),
            s,
            out + i + 8);
      }
    }
  }

  /// Eight codes.
  template <typename Element>
  HVD_TARGET static __m256i integers(const uint8_t* in) {
    if constexpr (std::is_same_v<Element, Int8>) {
      return _mm256_cvtepi8_epi32(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in)));
    } else {
      int32_t pairs;
      std::memcpy(&pairs, in, sizeof(pairs));
      // Each to the top of its word, from where its sign comes down with it.
      return _mm256_srai_epi32(
          _mm256_sllv_epi32(
              _mm256_set1_epi32(pairs),
              _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0)),
          28);
    }
  }

  template <typename Cast>
  HVD_TARGET static void encode_cast(const float* in, int64_t n, uint8_t* out) {
    for (int64_t i = 0; i < n; i += 16) {
      __builtin_prefetch(in + i + kAhead);
      const __m256i mixed = _mm256_packus_epi32(
          encode_words<Cast>(_mm256_loadu_ps(in + i)),
          encode_words<Cast>(_mm256_loadu_ps(in + i + 8)));
      store(out + 2 * i, _mm256_permute4x64_epi64(mixed, 0b11011000));
    }
  }

  /// Eight codes of 16 bits, each in a word.
  template <typename Cast>
  HVD_TARGET static __m256i encode_words(__m256 value) {
    const __m256i nan =
        _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    if constexpr (std::is_same_v<Cast, Half>) {
      const __m256i codes = _mm256_cvtepu16_epi32(_mm256_cvtps_ph(
          value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
      return _mm256_blendv_epi8(codes, words(0x7e00), nan);
    } else {
      const __m256i bits = _mm256_castps_si256(value);
      const __m256i odd =
          _mm256_and_si256(_mm256_srli_epi32(bits, 16), words(1));
      const __m256i rounded = _mm256_srli_epi32(
          _mm256_add_epi32(_mm256_add_epi32(bits, words(0x7fff)), odd), 16);
      return _mm256_blendv_epi8(rounded, words(0x7fc0), nan);
    }
  }

  template <typename Cast, Write kWrite>
  HVD_TARGET static void decode_cast(const uint8_t* in, int64_t n, float* out) {
    for (int64_t i = 0; i < n; i += 8) {
      const __m128i codes = load_half(in + 2 * i);
      if constexpr (std::is_same_v<Cast, Half>) {
        place<kWrite>(_mm256_cvtph_ps(codes), out + i);
      } else {
        const __m256i bits =
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16);
        place<kWrite>(_mm256_castsi256_ps(bits), out + i);
      }
    }
  }
};

} // namespace

const Kernels* avx2_kernels() {
  static constexpr Kernels set = make_kernels<Rows>("avx2");
  const bool can = __builtin_cpu_supports("avx2") &&
      __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return can ? &set : nullptr;
}

} // namespace hvd

#else

namespace hvd {

const Kernels* avx2_kernels() {
  return nullptr;
}

} // namespace hvd

#endif
