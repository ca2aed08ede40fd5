#include "transport/shm/staging.h"

#include "common/clock.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace hvd::shm {

namespace {

// For less neither takes longer than looking at the clock.
constexpr int64_t kLeast = 4096;

// Both are tried in turns at first, then the one that costs more once in this
// many copies: more often and it would cost several percent where it is much
// slower. A prime, for programs repeat themselves.
constexpr uint64_t kTurns = 16;
constexpr uint64_t kBetweenTries = 127;

// Streaming stores have to be faster by this, for who stores does not see what
// it costs the reader to read from memory. On two cores of an EPYC 9004 they
// are 0.7 to 1.6 times as fast where the two share a cache, and an all_reduce
// takes 1.4 times as long by them; 3 to 7 times where the two do not.
constexpr double kWorthwhile = 2;

// The weight of what is new in the average, less where it is more: the first
// copies to memory take much longer than all others, and some lose the core to
// another thread meanwhile. No cost counts as more than so many averages.
constexpr double kFall = 0.5;
constexpr double kRise = 0.125;
constexpr double kMost = 2;

#if defined(__x86_64__)

void stream(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t kLine = 64;
  const size_t whole = bytes - bytes % kLine;
  for (size_t i = 0; i < whole; i += kLine) {
    const auto* const in = reinterpret_cast<const __m128i*>(from + i);
    auto* const out = reinterpret_cast<__m128i*>(to + i);
    for (size_t part = 0; part < kLine / sizeof(__m128i); ++part) {
      _mm_stream_si128(out + part, _mm_loadu_si128(in + part));
    }
  }
  std::memcpy(to + whole, from + whole, bytes - whole);
  _mm_sfence(); // a release store waits for ordinary ones only
}

#else

void stream(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

} // namespace

void copy_by(Stores stores, std::byte* to, const void* from, int64_t bytes) {
  const auto length = static_cast<size_t>(bytes);
  if (stores == Stores::Streaming) {
    stream(to, static_cast<const std::byte*>(from), length);
  } else {
    std::memcpy(to, from, length);
  }
}

Stores StoresChoice::next() {
  const auto number = copies_++;
  if (number < kTurns) {
    return number % 2 == 0 ? Stores::Ordinary : Stores::Streaming;
  }
  const bool streaming = cost_[0] > kWorthwhile * cost_[1];
  const bool other = number % kBetweenTries == 0;
  return streaming != other ? Stores::Streaming : Stores::Ordinary;
}

void StoresChoice::learn(Stores used, double cost) {
  double& average = cost_[static_cast<size_t>(used)];
  if (average == 0) {
    average = cost;
  } else if (cost < average) {
    average += kFall * (cost - average);
  } else {
    average += kRise * (std::min(cost, kMost * average) - average);
  }
}

void StagingCopy::operator()(std::byte* to, const void* from, int64_t bytes) {
  if (bytes < kLeast) {
    copy_by(Stores::Ordinary, to, from, bytes);
    return;
  }
  auto& choice = choices_[std::bit_width(static_cast<uint64_t>(bytes))];
  const auto stores = choice.next();
  const auto begun = Clock::now();
  copy_by(stores, to, from, bytes);
  const std::chrono::duration<double> took = Clock::now() - begun;
  choice.learn(stores, took.count() / static_cast<double>(bytes));
}

} // namespace hvd::shm
