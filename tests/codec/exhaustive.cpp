// All 2^32 floats through the codecs' elements, and through the kernels of each
// instruction set that this processor has, against torch's own types.

#include "codec/elements.h"
#include "codec/fours.h"
#include "codec/kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

using namespace hvd;

constexpr int64_t kRow = 1024;
constexpr uint64_t kAll = uint64_t{1} << 32;

[[noreturn]] void fail(
    const char* what,
    float value,
    uint32_t found,
    uint32_t expected) {
  std::printf(
      "%s of %a (0x%08x): 0x%x, expected 0x%x\n",
      what,
      value,
      bits_of(value),
      found,
      expected);
  std::_Exit(1);
}

/// Floats first, first + 1, ... by their bits.
void fill(uint64_t first, float* row) {
  for (int64_t i = 0; i < kRow; ++i) {
    row[i] = float_of(static_cast<uint32_t>(first + i));
  }
}

bool is_nan(float value) {
  return value != value;
}

/// torch 2.13 saturates infinity to 448; here it is as NaN.
uint8_t torch_e4m3(float value) {
  const bool infinite = !is_finite(value) && !is_nan(value);
  const c10::Float8_e4m3fn code(
      infinite ? float_of(kNanBits | bits_of(value)) : value);
  return code.x;
}

uint8_t torch_e5m2(float value) {
  return c10::Float8_e5m2(value).x;
}

/// By the C library, in the current rounding mode: to nearest even.
uint8_t nearest_int8(float value) {
  return static_cast<uint8_t>(
      std::lrintf(std::abs(value) <= Int8::kMax ? value : 0.0F));
}

uint16_t torch_half(float value) {
  return is_nan(value) ? 0x7e00 : c10::Half(value).x;
}

uint16_t torch_bfloat16(float value) {
  return is_nan(value) ? 0x7fc0 : c10::BFloat16(value).x;
}

template <typename Code>
using Codes = std::array<Code, kRow>;

template <typename Code>
void compare(
    const char* what,
    const float* row,
    const Codes<Code>& found,
    const Codes<Code>& expected) {
  if (std::memcmp(found.data(), expected.data(), sizeof(found)) != 0) {
    for (int64_t i = 0; i < kRow; ++i) {
      if (found[i] != expected[i]) {
        fail(what, row[i], found[i], expected[i]);
      }
    }
  }
}

template <typename Code, typename Encode>
Codes<Code> encoded(const float* row, Encode encode) {
  Codes<Code> codes;
  for (int64_t i = 0; i < kRow; ++i) {
    codes[i] = encode(row[i]);
  }
  return codes;
}

void compare_cast(
    const Kernels& kernels,
    Compression compression,
    const float* row,
    const Codes<uint16_t>& expected) {
  Codes<uint16_t> codes;
  auto* const bytes = reinterpret_cast<uint8_t*>(codes.data());
  kernels[compression].encode(row, kRow, 0, bytes, nullptr);
  compare(kernels.name, row, codes, expected);
}

/// The row as blocks of scale 1, which have the format's largest value at one
/// end: so the kernels meet every value that a block can make of its own.
template <typename Element>
void compare_blocks(
    const std::vector<const Kernels*>& sets,
    Compression compression,
    const float* row,
    Codes<uint8_t> expected) {
  constexpr int64_t kBlock = 128;
  if (!(std::abs(row[0]) <= Element::kMax) ||
      !(std::abs(row[kRow - 1]) <= Element::kMax)) {
    return;
  }
  float values[kRow];
  std::memcpy(values, row, sizeof(values));
  const bool odd = (bits_of(row[0]) / kRow) % 2 != 0;
  for (int64_t i = odd ? kBlock - 1 : 0; i < kRow; i += kBlock) {
    values[i] = Element::kMax;
    expected[i] = Element::encode(Element::kMax);
  }
  for (const Kernels* set : sets) {
    Codes<uint8_t> codes;
    uint8_t scales[2 * kRow / kBlock];
    (*set)[compression].encode(values, kRow, kBlock, codes.data(), scales);
    compare(set->name, values, codes, expected);
  }
}

/// Four at a time, as far as the format reaches.
template <typename Element>
void compare_fours(
    const char* what,
    const float* row,
    const Codes<uint8_t>& expected) {
  for (int64_t i = 0; i < kRow; i += 4) {
    Four four;
    std::memcpy(&four, row + i, sizeof(four));
    if (!(std::abs(row[i]) <= Element::kMax) ||
        !(std::abs(row[i + 3]) <= Element::kMax)) {
      continue;
    }
    const uint32_t codes = Fours<Element>::encode(four);
    for (int j = 0; j < 4; ++j) {
      const uint32_t code =
          codes >> (Element::kBits * j) & ((1U << Element::kBits) - 1);
      if (code != expected[i + j]) {
        fail(what, row[i + j], code, expected[i + j]);
      }
    }
  }
}

/// All codes beside all others that matter: what they decode to, and whether
/// one that is not finite is noticed.
template <typename Element>
void compare_decoded_fours(const char* what) {
  for (uint32_t code = 0; code < 1U << Element::kBits; ++code) {
    for (int place = 0; place < 4; ++place) {
      const auto codes = static_cast<typename Fours<Element>::Codes>(
          code << (Element::kBits * place));
      const bool finite = Element::decodes_finite(static_cast<uint8_t>(code));
      if (Fours<Element>::all_finite(codes) != finite) {
        fail(what, 0, finite, !finite);
      }
      const Four four = Fours<Element>::decode(codes);
      for (int i = 0; finite && i < 4; ++i) {
        const float expected =
            Element::decode(static_cast<uint8_t>(i == place ? code : 0));
        const float found = four.values[i] * Fours<Element>::kLift;
        if (bits_of(found) != bits_of(expected)) {
          fail(what, expected, bits_of(found), bits_of(expected));
        }
      }
    }
  }
}

void compare_all(uint64_t first, const std::vector<const Kernels*>& sets) {
  float row[kRow];
  fill(first, row);
  const auto e4m3 = encoded<uint8_t>(row, E4m3::encode);
  const auto e5m2 = encoded<uint8_t>(row, E5m2::encode);
  const auto half = encoded<uint16_t>(row, encode_half);
  const auto bfloat16 = encoded<uint16_t>(row, encode_bfloat16);
  compare("e4m3", row, e4m3, encoded<uint8_t>(row, torch_e4m3));
  compare("e5m2", row, e5m2, encoded<uint8_t>(row, torch_e5m2));
  compare("fp16", row, half, encoded<uint16_t>(row, torch_half));
  compare("bf16", row, bfloat16, encoded<uint16_t>(row, torch_bfloat16));
  for (const Kernels* set : sets) {
    compare_cast(*set, Compression::Fp16, row, half);
    compare_cast(*set, Compression::Bf16, row, bfloat16);
  }
  compare_blocks<E4m3>(sets, Compression::Fp8, row, e4m3);
  compare_blocks<E5m2>(sets, Compression::Fp8E5M2, row, e5m2);
  compare_blocks<Int8>(
      sets, Compression::Int8, row, encoded<uint8_t>(row, nearest_int8));
  compare_fours<E4m3>("four e4m3", row, e4m3);
  compare_fours<E5m2>("four e5m2", row, e5m2);
  compare_fours<Int8>("four int8", row, encoded<uint8_t>(row, nearest_int8));
  compare_fours<Int4>("four int4", row, encoded<uint8_t>(row, Int4::encode));
}

/// All 256 codes, and all 65536 of fp16.
void compare_decoding() {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float half = decode_half(static_cast<uint16_t>(code));
    const auto x = static_cast<uint16_t>(code);
    const float expected = c10::Half(x, c10::Half::from_bits());
    if (bits_of(half) != bits_of(expected) && !is_nan(expected)) {
      fail("fp16", expected, bits_of(half), bits_of(expected));
    }
    const auto byte = static_cast<uint8_t>(code);
    const float e4m3 =
        c10::Float8_e4m3fn(byte, c10::Float8_e4m3fn::from_bits());
    const float e5m2 = c10::Float8_e5m2(byte, c10::Float8_e5m2::from_bits());
    if (bits_of(E4m3::decode(byte)) != bits_of(e4m3) && !is_nan(e4m3)) {
      fail("e4m3", e4m3, bits_of(E4m3::decode(byte)), bits_of(e4m3));
    }
    if (bits_of(E5m2::decode(byte)) != bits_of(e5m2) && !is_nan(e5m2)) {
      fail("e5m2", e5m2, bits_of(E5m2::decode(byte)), bits_of(e5m2));
    }
    if (is_nan(e4m3) != is_nan(E4m3::decode(byte)) ||
        is_nan(e5m2) != is_nan(E5m2::decode(byte)) ||
        is_nan(expected) != is_nan(half)) {
      fail("NaN", 0, code, code);
    }
  }
}

} // namespace

int main() {
  std::vector<const Kernels*> sets;
  for (const Kernels* set :
       {plain_kernels(), avx2_kernels(), avx512_kernels()}) {
    if (set != nullptr) {
      std::printf("%s ", set->name);
      sets.push_back(set);
    }
  }
  compare_decoding();
  compare_decoded_fours<E4m3>("four e4m3");
  compare_decoded_fours<E5m2>("four e5m2");
  compare_decoded_fours<Int8>("four int8");
  compare_decoded_fours<Int4>("four int4");
  std::atomic<uint64_t> next{0};
  constexpr uint64_t kShare = uint64_t{1} << 22;
  const auto work = [&] {
    for (uint64_t share = next.fetch_add(kShare); share < kAll;
         share = next.fetch_add(kShare)) {
      for (uint64_t first = share; first < share + kShare; first += kRow) {
        compare_all(first, sets);
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i) {
    threads.emplace_back(work);
  }
  for (auto& thread : threads) {
    thread.join();
  }
  std::printf("agree with torch for all %llu floats\n", 1ULL << 32);
  return 0;
}
