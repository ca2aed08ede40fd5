// The functions of csrc/cuda on tiles, with a team of one thread, against the
// kernels of csrc/codec for the host: the same bits for every codec, dtype,
// block, count and alignment, and not a byte beyond.

#include "cuda/copy.h"
#include "cuda/decode.h"
#include "cuda/encode.h"
#include "cuda/list.h"
#include "cuda/sum.h"
#include "hard_values.h"
#include "lockstep.h"
#include "reference.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace {

using namespace hvd;
using Bytes = std::vector<uint8_t>;

constexpr Number kNumbers[] = {
    Number::Float32,
    Number::Float16,
    Number::BFloat16};
const std::vector<int64_t> kCounts =
    {0, 1, 2, 3, 31, 33, 127, 128, 129, 1000, 1023, 1024, 1025, 2049, 5003};

std::mt19937 random_bits;

[[noreturn]] void fail(const char* what, Codec codec, Number number) {
  std::printf(
      "%s: compression %d, block %d, number %d\n",
      what,
      static_cast<int>(codec.compression),
      codec.block,
      static_cast<int>(number));
  std::exit(1);
}

/// Memory at any address, in a sea of bytes that must stay as they are.
class Island {
 public:
  Island() = default;
  Island(const void* from, int64_t bytes, int64_t unit)
      : size_(bytes), sea_(bytes + 256, kSea) {
    const auto address = reinterpret_cast<uintptr_t>(sea_.data());
    begin_ = (16 - address % 16) % 16 + 16 + unit * (random_bits() % 8);
    if (bytes > 0) {
      std::memcpy(data(), from, bytes);
    }
  }
  /// Some that is written whatever it holds.
  Island(int64_t bytes, int64_t unit)
      : Island(Bytes(bytes, 0xee).data(), bytes, unit) {}

  uint8_t* data() {
    return sea_.data() + begin_;
  }
  Bytes bytes() const {
    return {sea_.begin() + begin_, sea_.begin() + begin_ + size_};
  }
  bool is_intact() const {
    const auto is_sea = [](uint8_t byte) { return byte == kSea; };
    return std::all_of(sea_.begin(), sea_.begin() + begin_, is_sea) &&
        std::all_of(sea_.begin() + begin_ + size_, sea_.end(), is_sea);
  }

 private:
  static constexpr uint8_t kSea = 0xa5;

  int64_t size_ = 0;
  Bytes sea_;
  int64_t begin_ = 0;
};

template <typename T>
Island island(const std::vector<T>& from, int64_t unit = sizeof(T)) {
  return {from.data(), static_cast<int64_t>(from.size() * sizeof(T)), unit};
}

/// What one piece needs, and what is expected of it.
struct Case {
  int64_t count;
  Bytes numbers;
  std::vector<float> residual; ///< empty: none
  Parts message;

  Island numbers_at;
  Island residual_at;
  Island values_at;
  Island scales_at;

  DeviceKernels::Piece piece() {
    auto* const rest = reinterpret_cast<float*>(residual_at.data());
    return {
        numbers_at.data(),
        values_at.data(),
        scales_at.data(),
        residual.empty() ? nullptr : rest,
        count};
  }
  bool is_intact() const {
    return numbers_at.is_intact() && residual_at.is_intact() &&
        values_at.is_intact() && scales_at.is_intact();
  }
};

Bytes numbers(Number number, int64_t count) {
  Bytes bytes(count * bytes_of(number));
  const auto values = hard_values(count, random_bits);
  for (int64_t i = 0; i < count; ++i) {
    uint8_t* const at = bytes.data() + i * bytes_of(number);
    if (number == Number::Float32) {
      std::memcpy(at, &values[i], sizeof(float));
    } else {
      const uint16_t code = number == Number::Float16
          ? encode_half(values[i])
          : encode_bfloat16(values[i]);
      std::memcpy(at, &code, 2);
    }
  }
  return bytes;
}

Bytes float_bytes(const std::vector<float>& values) {
  const auto* const begin = reinterpret_cast<const uint8_t*>(values.data());
  return {begin, begin + values.size() * sizeof(float)};
}

/// Calls `on_tile(entry, index)` for all tiles of the entries, as a launch with
/// `teams` teams would, in lists of whatever length a kernel takes.
template <int kParameterBytes, typename Entry, typename OnTile>
void for_tiles(const std::vector<Entry>& entries, OnTile on_tile) {
  constexpr uint32_t kTeams = 3;
  const auto size = static_cast<int64_t>(entries.size());
  for (int64_t begin = 0; begin < size;) {
    List<Entry, kParameterBytes> list;
    begin +=
        list.fill(entries.data() + begin, size - begin, [](const Entry& entry) {
          if constexpr (std::is_same_v<Entry, DeviceKernels::Copy>) {
            return tiles_of(entry);
          } else {
            return tiles_of(entry.count);
          }
        });
    for (uint32_t team = 0; team < kTeams; ++team) {
      for (uint32_t i = team; i < list.tiles; i += kTeams) {
        const int entry = list.find(i);
        on_tile(list.entries[entry], i - list.first_tiles[entry]);
      }
    }
  }
}

std::vector<Case> make_cases(
    const Reference& reference,
    Number number,
    bool residuals) {
  std::vector<Case> cases;
  for (int64_t count : kCounts) {
    Case one;
    one.count = count;
    one.numbers = numbers(number, count);
    one.residual = hard_values(residuals ? count : 0, random_bits);
    one.numbers_at = island(one.numbers, bytes_of(number));
    one.residual_at = island(one.residual);
    one.values_at = Island(reference.value_bytes(count), 1);
    one.scales_at = Island(reference.scale_bytes(count), 1);
    cases.push_back(std::move(one));
  }
  return cases;
}

std::vector<DeviceKernels::Piece> pieces_of(std::vector<Case>& cases) {
  std::vector<DeviceKernels::Piece> pieces;
  for (auto& one : cases) {
    pieces.push_back(one.piece());
  }
  return pieces;
}

template <typename Element>
void test_encode(Codec codec, int shift, Number number, bool residuals) {
  const Reference reference(codec);
  const float factor = residuals ? 0.3F : 1.0F;
  auto cases = make_cases(reference, number, residuals);
  for_tiles<kFewParameterBytes>(
      pieces_of(cases), [&](const auto& piece, int64_t index) {
        Lockstep team;
        const Tile tile =
            tile_of<Element::kBits>(piece, index, bytes_of(number), shift);
        encode_tile<Element>(team, tile, number, factor, [] {});
      });
  for (auto& one : cases) {
    const Parts expected =
        reference.encode(number, one.numbers, factor, one.residual);
    if (one.values_at.bytes() != expected.values ||
        one.scales_at.bytes() != expected.scales) {
      fail("encode", codec, number);
    }
    if (one.residual_at.bytes() != float_bytes(one.residual)) {
      fail("residual", codec, number);
    }
    if (!one.is_intact() || one.numbers_at.bytes() != one.numbers) {
      fail("encode wrote elsewhere", codec, number);
    }
  }
}

/// A message of numbers, or of bytes that no encoder has written.
Parts make_message(const Reference& reference, int64_t count, bool garbage) {
  std::vector<float> none;
  Parts message = reference.encode(
      Number::Float32, numbers(Number::Float32, count), 1, none);
  if (garbage) {
    const auto any = [] { return static_cast<uint8_t>(random_bits()); };
    std::generate(message.values.begin(), message.values.end(), any);
    std::generate(message.scales.begin(), message.scales.end(), any);
  }
  return message;
}

template <typename Element>
void test_decode(Codec codec, int shift, Number number, bool garbage) {
  const Reference reference(codec);
  auto cases = make_cases(reference, number, false);
  for (auto& one : cases) {
    one.message = make_message(reference, one.count, garbage);
    one.values_at = island(one.message.values);
    one.scales_at = island(one.message.scales);
  }
  for_tiles<kMostParameterBytes>(
      pieces_of(cases), [&](const auto& piece, int64_t index) {
        Lockstep team;
        const Tile tile =
            tile_of<Element::kBits>(piece, index, bytes_of(number), shift);
        decode_tile<Element>(team, tile, number, [] {});
      });
  for (auto& one : cases) {
    if (one.numbers_at.bytes() !=
        reference.decode(number, one.message, one.count)) {
      fail("decode", codec, number);
    }
    if (!one.is_intact()) {
      fail("decode wrote elsewhere", codec, number);
    }
  }
}

/// With `aligned`, where a device may load all codes of a tile at once.
template <typename Element>
void test_sum(Codec codec, int shift, int64_t size, bool aligned) {
  constexpr int64_t kCount = 5 * kTile;
  const int64_t unit = aligned ? 16 : 1;
  const Reference reference(codec);
  std::vector<Parts> messages;
  std::vector<Island> islands;
  for (int64_t i = 0; i < size; ++i) {
    messages.push_back(make_message(reference, kCount, i == 2));
    islands.push_back(island(messages.back().values, unit));
    islands.push_back(island(messages.back().scales, unit));
  }
  std::vector<DeviceKernels::Source> sources;
  for (int64_t i = 0; i < size; ++i) {
    sources.push_back({islands[2 * i].data(), islands[2 * i + 1].data()});
  }
  auto residual = hard_values(size % 2 == 0 ? kCount : 0, random_bits);
  Island residual_at = island(residual);
  auto* const rest = reinterpret_cast<float*>(residual_at.data());
  // Into the place of the last message.
  Island& values = islands[2 * size - 2];
  Island& scales = islands[2 * size - 1];
  const DeviceKernels::Piece sum{
      nullptr,
      values.data(),
      scales.data(),
      residual.empty() ? nullptr : rest,
      kCount};
  constexpr uint32_t kTeams = 2;
  for (uint32_t first = 0; first < kTeams; ++first) {
    Lockstep team;
    sum_tiles<Element>(
        team,
        sources.data(),
        static_cast<int>(size),
        sum,
        shift,
        first,
        kTeams);
  }
  const Parts expected =
      reference.decode_sum_encode(messages, kCount, residual);
  if (values.bytes() != expected.values || scales.bytes() != expected.scales ||
      residual_at.bytes() != float_bytes(residual)) {
    fail("decode_sum_encode", codec, Number::Float32);
  }
  const auto is_intact = [](const Island& one) { return one.is_intact(); };
  if (!residual_at.is_intact() ||
      !std::all_of(islands.begin(), islands.end(), is_intact)) {
    fail("decode_sum_encode wrote elsewhere", codec, Number::Float32);
  }
}

template <typename Element>
void test_codec(Compression compression, int32_t block, int shift) {
  const Codec codec{compression, false, block};
  for (Number number : kNumbers) {
    for (bool flag : {false, true}) {
      test_encode<Element>(codec, shift, number, flag);
      test_decode<Element>(codec, shift, number, flag);
    }
  }
  for (int64_t size : {1, 2, 3, 4}) {
    test_sum<Element>(codec, shift, size, true);
    test_sum<Element>(codec, shift, size, false);
  }
}

template <typename Element>
void test_blocks(Compression compression) {
  for (int shift = 5; shift <= 10; ++shift) {
    test_codec<Element>(compression, 1 << shift, shift);
  }
}

/// More entries than fit one list, at every distance of the two addresses.
void test_copy() {
  std::vector<Island> from;
  std::vector<Island> to;
  std::vector<DeviceKernels::Copy> copies;
  for (int i = 0; i < 400; ++i) {
    const int64_t bytes = i % 8 == 0 ? 3 * kCopyTile + i : random_bits() % 300;
    Bytes content(bytes);
    std::generate(content.begin(), content.end(), [] {
      return static_cast<uint8_t>(random_bits());
    });
    from.push_back(island(content, 1 << (i % 4)));
    to.push_back(Island(bytes, 1 << (i / 4 % 4)));
    copies.push_back({to.back().data(), from.back().data(), bytes});
  }
  for_tiles<kFewParameterBytes>(copies, [](const auto& copy, int64_t index) {
    Lockstep team;
    copy_tile(team, copy, index);
  });
  for (size_t i = 0; i < copies.size(); ++i) {
    if (to[i].bytes() != from[i].bytes() || !to[i].is_intact()) {
      fail("copy", {}, Number::Float32);
    }
  }
}

} // namespace

/// tiles [ROUNDS]
int main(int size, char** arguments) {
  const int rounds = size > 1 ? std::atoi(arguments[1]) : 1;
  for (int round = 0; round < rounds; ++round) {
    random_bits.seed(round);
    std::printf("seed %d\n", round);
    test_codec<HalfCast>(Compression::Fp16, 1, 0);
    test_codec<BFloat16Cast>(Compression::Bf16, 1, 0);
    test_blocks<E4m3>(Compression::Fp8);
    test_blocks<E5m2>(Compression::Fp8E5M2);
    test_blocks<Int8>(Compression::Int8);
    test_blocks<Int4>(Compression::Int4);
    test_copy();
  }
  std::printf("the same bits\n");
  return 0;
}
