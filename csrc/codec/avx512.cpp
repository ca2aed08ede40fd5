// Kernels for AVX-512 with its extensions up to VBMI, which came with Ice Lake
// and Zen 4.

#include "codec/kernels.h"

#if defined(__x86_64__)

// GCC 12 warns of what its own header leaves undefined on purpose (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#define HVD_TARGET                          \
  __attribute__((target(                    \
      "avx512f,avx512bw,avx512dq,avx512vl," \
      "avx512vbmi,avx2,fma,f16c")))
#include "codec/blocks.h"

#include <immintrin.h>

#include <array>
#include <type_traits>

namespace hvd {

namespace {

/// A select by bits, as an operand of vpternlog: c ? a : b.
constexpr int kSelect = 0xe4;

/// Of the operands of vrangeps the one of larger magnitude, with the sign of
/// the first.
constexpr int kLargerKeepSign = 0b0011;

/// Of 32 words, their second bytes and then their third ones; or the other way
/// round.
template <bool kThirdsFirst>
constexpr auto middle_bytes() {
  std::array<uint8_t, 64> places{};
  for (int i = 0; i < 64; ++i) {
    const bool third = (i >= 32) != kThirdsFirst;
    places[i] = static_cast<uint8_t>(4 * (i % 32) + (third ? 2 : 1));
  }
  return places;
}

HVD_TARGET inline __m512i words(int32_t bits) {
  return _mm512_set1_epi32(bits);
}

/// 16 values as integers. One that is not finite has no meaning.
HVD_TARGET inline __m512i round_to_integers(const float* in, __m512 r) {
  return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(in), r));
}

/// 16 values as small floats, as SmallFloat::kRounder has it, but in words:
/// the second byte is the code without its sign, and the sign is the first bit
/// of the third.
template <typename Format>
HVD_TARGET inline __m512i round_to_words(const float* in, __m512 r) {
  constexpr int kUp = 8 - Format::kCodeShift;
  const __m512 value = _mm512_mul_ps(_mm512_loadu_ps(in), r);
  // The larger magnitude, with the sign of the value.
  const __m512 normal = _mm512_range_ps(
      value, _mm512_castsi512_ps(words(Format::kNormal)), kLargerKeepSign);
  const __m512 power = _mm512_and_ps(
      normal, _mm512_castsi512_ps(words(static_cast<int32_t>(0xff800000))));
  const __m512 rounded =
      _mm512_fmadd_ps(power, _mm512_set1_ps(Format::kRounder), value);
  return _mm512_madd_epi16(
      _mm512_castps_si512(rounded),
      words(1 << (16 + kUp) | Format::kLowerWeight << kUp));
}

/// The codes of 32 values in one half, bytes that begin with their signs in the
/// other.
template <typename Format, bool kSignsFirst>
HVD_TARGET inline __m512i codes_and_signs(const float* in, __m512 r) {
  static constexpr auto kPlaces = middle_bytes<kSignsFirst>();
  return _mm512_permutex2var_epi8(
      round_to_words<Format>(in, r),
      _mm512_loadu_si512(kPlaces.data()),
      round_to_words<Format>(in + 16, r));
}

template <typename Element>
HVD_TARGET inline __m512i encode_64(const float* in, __m512 r) {
  if constexpr (kIsInteger<Element>) {
    const __m512i first = _mm512_packs_epi32(
        round_to_integers(in, r), round_to_integers(in + 16, r));
    const __m512i second = _mm512_packs_epi32(
        round_to_integers(in + 32, r), round_to_integers(in + 48, r));
    // Each 128 bits hold a part of each of the four vectors.
    const __m512i order =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, second));
  } else {
    using Format = typename Element::Format;
    const __m512i first = codes_and_signs<Format, false>(in, r);
    const __m512i second = codes_and_signs<Format, true>(in + 32, r);
    return _mm512_ternarylogic_epi32(
        _mm512_mask_mov_epi64(first, 0xf0, second),
        _mm512_shuffle_i64x2(first, second, 0b01001110),
        _mm512_set1_epi8(0x7f),
        kSelect);
  }
}

template <typename Element>
HVD_TARGET inline __m256i encode_32(const float* in, __m512 r) {
  if constexpr (kIsInteger<Element>) {
    const __m256i mixed = _mm512_cvtsepi16_epi8(_mm512_packs_epi32(
        round_to_integers(in, r), round_to_integers(in + 16, r)));
    const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    return _mm256_permutevar8x32_epi32(mixed, order);
  } else {
    using Format = typename Element::Format;
    const __m512i both = codes_and_signs<Format, false>(in, r);
    return _mm256_ternarylogic_epi32(
        _mm512_castsi512_si256(both),
        _mm512_extracti64x4_epi64(both, 1),
        _mm256_set1_epi8(0x7f),
        kSelect);
  }
}

/// 64 codes of -7 to 7, two in a byte; less than that is "not finite".
HVD_TARGET inline __m256i pair_up(__m512i bytes) {
  const __m512i codes = _mm512_max_epi8(bytes, _mm512_set1_epi8(-8));
  return _mm512_cvtepi16_epi8(_mm512_ternarylogic_epi32(
      codes, _mm512_srli_epi16(codes, 4), _mm512_set1_epi16(0xf), kSelect));
}

/// Writes 64 values; `out` may be of 4 bits each.
template <typename Element>
HVD_TARGET inline void put_64(const float* in, __m512 r, uint8_t* out) {
  const __m512i codes = encode_64<Element>(in, r);
  if constexpr (Element::kBits == 8) {
    _mm512_storeu_si512(out, codes);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), pair_up(codes));
  }
}

template <typename Element>
HVD_TARGET inline void put_32(const float* in, __m512 r, uint8_t* out) {
  const __m256i codes = encode_32<Element>(in, r);
  if constexpr (Element::kBits == 8) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), codes);
  } else {
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out),
        _mm256_castsi256_si128(pair_up(_mm512_castsi256_si512(codes))));
  }
}

/// Which of 64 codes are not finite.
template <typename Element>
HVD_TARGET inline __mmask64 not_finite(__m512i codes) {
  if constexpr (std::is_same_v<Element, Int8>) {
    return _mm512_cmpeq_epi8_mask(codes, _mm512_set1_epi8(-128));
  } else {
    constexpr char first =
        std::is_same_v<Element, E4m3> ? E4m3::kNan : E5m2::kInfinity;
    return _mm512_cmpge_epi8_mask(
        _mm512_and_si512(codes, _mm512_set1_epi8(0x7f)),
        _mm512_set1_epi8(first));
  }
}

/// 32 small floats as fp16, E4m3 times 2^-8.
template <typename Element>
HVD_TARGET inline __m512i as_halves(const uint8_t* in) {
  const __m256i codes =
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
  if constexpr (std::is_same_v<Element, E5m2>) {
    return _mm512_slli_epi16(_mm512_cvtepu8_epi16(codes), 8);
  } else {
    // Sign and four bits of exponent to where five have their place.
    return _mm512_and_si512(
        _mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 7),
        _mm512_set1_epi16(static_cast<int16_t>(0xbfff)));
  }
}

template <Write kWrite>
HVD_TARGET inline void put(__m512 number, float* out) {
  if constexpr (kWrite == Write::Stream) {
    _mm512_stream_ps(out, number);
  } else {
    _mm512_storeu_ps(out, number);
  }
}

template <Write kWrite>
HVD_TARGET inline void place(__m512 number, __m512 scale, float* out) {
  put<kWrite>(
      kWrite == Write::Add
          ? _mm512_fmadd_ps(number, scale, _mm512_loadu_ps(out))
          : _mm512_mul_ps(number, scale),
      out);
}

template <Write kWrite>
HVD_TARGET inline void place(__m512 number, float* out) {
  put<kWrite>(
      kWrite == Write::Add ? _mm512_add_ps(_mm512_loadu_ps(out), number)
                           : number,
      out);
}

struct Rows {
  static void fence() {
    _mm_sfence();
  }

  using Most = __m512i;

  template <int64_t kUnit>
  HVD_TARGET static Most most(const float* in) {
    __m512i even = _mm512_setzero_si512();
    __m512i odd = even;
    for (int64_t i = 0; i < kUnit; i += 32) {
      even = _mm512_max_epi32(even, magnitudes(in + i));
      odd = _mm512_max_epi32(odd, magnitudes(in + i + 16));
    }
    return _mm512_max_epi32(even, odd);
  }

  HVD_TARGET static Most larger(Most a, Most b) {
    return _mm512_max_epi32(a, b);
  }

  /// By 16: what is stored as one vector is soon loaded as one.
  HVD_TARGET static void largest(Most* most, int64_t count, uint32_t* out) {
    for (int64_t i = count; i % 16 != 0; ++i) {
      most[i] = _mm512_setzero_si512();
    }
    const __m512i order = _mm512_setr_epi32(
        0, 4, 8, 12, 2, 6, 10, 14, 16, 20, 24, 28, 18, 22, 26, 30);
    for (int64_t i = 0; i < count; i += 16) {
      _mm512_storeu_si512(
          out + i,
          _mm512_permutex2var_epi32(
              largest_of_8(most + i), order, largest_of_8(most + i + 8)));
    }
  }

  /// Of 16 values, in bits in whose order a NaN is the largest; some that are
  /// used later are fetched.
  HVD_TARGET static __m512i magnitudes(const float* in) {
    __builtin_prefetch(in + kAhead);
    return _mm512_and_si512(_mm512_loadu_si512(in), words(kMagnitudeBits));
  }

  /// The largest lane of each of eight vectors, in lanes 0, 4, 8, 12, 2, 6, 10
  /// and 14: halves are folded onto each other, two vectors at a time.
  HVD_TARGET static __m512i largest_of_8(const __m512i* of) {
    const __m512i ab = fold<0x44, 0xee>(of[0], of[1]);
    const __m512i cd = fold<0x44, 0xee>(of[2], of[3]);
    const __m512i ef = fold<0x44, 0xee>(of[4], of[5]);
    const __m512i gh = fold<0x44, 0xee>(of[6], of[7]);
    const __m512i abcd = fold<0x88, 0xdd>(ab, cd);
    const __m512i efgh = fold<0x88, 0xdd>(ef, gh);
    const __m512i pairs = _mm512_max_epi32(
        _mm512_unpacklo_epi64(abcd, efgh), _mm512_unpackhi_epi64(abcd, efgh));
    return _mm512_max_epi32(pairs, _mm512_shuffle_epi32(pairs, _MM_PERM_CDAB));
  }

  /// The larger of two halves of both vectors, 128 bits by 128.
  template <int kOne, int kOther>
  HVD_TARGET static __m512i fold(__m512i a, __m512i b) {
    return _mm512_max_epi32(
        _mm512_shuffle_i32x4(a, b, kOne), _mm512_shuffle_i32x4(a, b, kOther));
  }

  template <typename Element, int64_t kUnit>
  HVD_TARGET static void encode(
      const float* in,
      float reciprocal,
      uint8_t* out) {
    const __m512 r = _mm512_set1_ps(reciprocal);
    if constexpr (kUnit == 32) {
      put_32<Element>(in, r, out);
    } else {
      for (int64_t i = 0; i < kUnit; i += 64) {
        put_64<Element>(in + i, r, out + i * Element::kBits / 8);
      }
    }
  }

  template <typename Element>
  HVD_TARGET static bool all_finite(const uint8_t* in, int64_t n) {
    if constexpr (Element::kBits == 4) {
      return true; // the table of decode() has a NaN
    } else {
      __mmask64 bad = 0;
      int64_t i = 0;
      for (; i + 64 <= n; i += 64) {
        bad |= not_finite<Element>(_mm512_loadu_si512(in + i));
      }
      if (i < n) {
        bad |= not_finite<Element>(_mm512_maskz_loadu_epi8(~0U, in + i));
      }
      return bad == 0;
    }
  }

  template <typename Element, Write kWrite>
  HVD_TARGET static void decode(
      const uint8_t* in,
      float scale,
      int64_t n,
      float* out) {
    if constexpr (std::is_same_v<Element, Int8>) {
      const __m512 s = _mm512_set1_ps(scale);
      for (int64_t i = 0; i < n; i += 16) {
        const __m128i codes =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
        place<kWrite>(
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)), s, out + i);
      }
    } else if constexpr (std::is_same_v<Element, Int4>) {
      decode_int4<kWrite>(in, scale, n, out);
    } else {
      const __m512 s = _mm512_set1_ps(
          std::is_same_v<Element, E4m3> ? scale * 0x1p8F : scale);
      for (int64_t i = 0; i < n; i += 32) {
        const __m512i halves = as_halves<Element>(in + i);
        place<kWrite>(
            _mm512_cvtph_ps(_mm512_castsi512_si256(halves)), s, out + i);
        place<kWrite>(
            _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)),
            s,
            out + i + 16);
      }
    }
  }

  /// By a table of all 16 products; of its index four bits count.
  template <Write kWrite>
  HVD_TARGET static void decode_int4(
      const uint8_t* in,
      float scale,
      int64_t n,
      float* out) {
    const __m512 codes = _mm512_setr_ps(
        0, 1, 2, 3, 4, 5, 6, 7, float_of(kNanBits), -7, -6, -5, -4, -3, -2, -1);
    const __m512 products = _mm512_mul_ps(codes, _mm512_set1_ps(scale));
    const __m512i eighths = _mm512_setr_epi32(
        0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i first =
        _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i second =
        _mm512_setr_epi32(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    for (int64_t i = 0; i < n; i += 32) {
      const __m512i pairs = _mm512_castsi128_si512(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i / 2)));
      const __m512i low =
          _mm512_srlv_epi32(_mm512_permutexvar_epi32(first, pairs), eighths);
      const __m512i high =
          _mm512_srlv_epi32(_mm512_permutexvar_epi32(second, pairs), eighths);
      place<kWrite>(_mm512_permutexvar_ps(low, products), out + i);
      place<kWrite>(_mm512_permutexvar_ps(high, products), out + i + 16);
    }
  }

  template <typename Cast>
  HVD_TARGET static void encode_cast(const float* in, int64_t n, uint8_t* out) {
    const __m512i upper_halves = _mm512_add_epi16(
        _mm512_set1_epi16(1), _mm512_slli_epi16(count_up(), 1));
    for (int64_t i = 0; i < n; i += 32) {
      __builtin_prefetch(in + i + kAhead);
      __builtin_prefetch(in + i + kAhead + 16);
      const __m512 first = _mm512_loadu_ps(in + i);
      const __m512 second = _mm512_loadu_ps(in + i + 16);
      if constexpr (std::is_same_v<Cast, Half>) {
        store_halves(first, out + 2 * i);
        store_halves(second, out + 2 * i + 32);
      } else {
        const __m512i codes = _mm512_permutex2var_epi16(
            round_to_upper_half(first),
            upper_halves,
            round_to_upper_half(second));
        _mm512_storeu_si512(out + 2 * i, codes);
      }
    }
  }

  /// 0 to 31 in 16 bits each.
  HVD_TARGET static __m512i count_up() {
    return _mm512_cvtepi8_epi16(_mm256_setr_epi8(
        // clang-format off
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31));
    // clang-format on
  }

  HVD_TARGET static void store_halves(__m512 value, uint8_t* out) {
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m256i codes =
        _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(out),
        _mm256_mask_mov_epi16(codes, nan, _mm256_set1_epi16(0x7e00)));
  }

  /// bf16, with what was dropped below.
  HVD_TARGET static __m512i round_to_upper_half(__m512 value) {
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), words(1));
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, words(0x7fff)), odd);
    return _mm512_mask_mov_epi32(rounded, nan, words(kNanBits));
  }

  template <typename Cast, Write kWrite>
  HVD_TARGET static void decode_cast(const uint8_t* in, int64_t n, float* out) {
    for (int64_t i = 0; i < n; i += 16) {
      const __m256i codes =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 2 * i));
      if constexpr (std::is_same_v<Cast, Half>) {
        place<kWrite>(_mm512_cvtph_ps(codes), out + i);
      } else {
        const __m512i bits =
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16);
        place<kWrite>(_mm512_castsi512_ps(bits), out + i);
      }
    }
  }
};

} // namespace

const Kernels* avx512_kernels() {
  static constexpr Kernels set = make_kernels<Rows>("avx512");
  const bool can = __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx2") &&
      __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return can ? &set : nullptr;
}

} // namespace hvd

#else

namespace hvd {

const Kernels* avx512_kernels() {
  return nullptr;
}

} // namespace hvd

#endif
