#include "shm_tests.h"

#include "groups.h"
#include "messages.h"
#include "random.h"
#include "require.h"
#include "transport/shm/arena.h"
#include "transport/shm/outbox.h"
#include "transport/shm/segment.h"
#include "transport/shm/staging.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

namespace hvd::model {

namespace {

using shm::Letter;

constexpr std::chrono::seconds kForEver{100};

/// How many of `copies` are made by ordinary stores, where these cost
/// `ordinary` times what streaming ones do, give or take 30 %, and one copy in
/// a hundred loses its core meanwhile.
int made_ordinarily(
    shm::StoresChoice& choice,
    Random& random,
    double ordinary,
    int copies) {
  int made = 0;
  for (int i = 0; i < copies; ++i) {
    const auto stores = choice.next();
    const bool is_ordinary = stores == shm::Stores::Ordinary;
    const double lost = random.chance(1) ? 1000 : 1;
    const double noise = static_cast<double>(random.between(70, 130)) / 100;
    choice.learn(stores, (is_ordinary ? ordinary : 1) * noise * lost);
    made += is_ordinary ? 1 : 0;
  }
  return made;
}

} // namespace

void test_arena(uint64_t seed) {
  constexpr int64_t kBytes = 64 * 1024;
  Random random(seed);
  shm::Arena arena(kBytes);
  std::vector<std::pair<int64_t, int64_t>> taken; // begin, end
  for (int step = 0; step < 2000; ++step) {
    if (random.chance(55)) {
      const int64_t bytes = random.between(1, kBytes / 4);
      const auto offset = arena.take(bytes);
      if (!offset) {
        continue;
      }
      REQUIRE(*offset % 64 == 0 && *offset + bytes <= kBytes);
      for (const auto& [begin, end] : taken) {
        REQUIRE(*offset + bytes <= begin || end <= *offset);
      }
      taken.emplace_back(*offset, *offset + bytes);
    } else if (!taken.empty()) {
      const auto which = random.below(std::ssize(taken));
      arena.give_back(taken[which].first);
      taken.erase(taken.begin() + which);
    }
  }
  for (const auto& one : taken) {
    arena.give_back(one.first);
  }
  REQUIRE(arena.take(kBytes) == 0); // whole again
}

void test_stores_choice(uint64_t seed) {
  constexpr double kNear = 1;
  constexpr double kFar = 5;
  constexpr int kCopies = 10'000;
  constexpr int kLearning = 5000; // those that cost more are tried seldom
  constexpr int kTries = kCopies / 50;
  Random random(seed);
  shm::StoresChoice choice;
  for (int turn = 0; turn < 3; ++turn) {
    made_ordinarily(choice, random, kFar, kLearning);
    const int far = made_ordinarily(choice, random, kFar, kCopies);
    REQUIRE(0 < far && far < kTries);
    made_ordinarily(choice, random, kNear, kLearning);
    const int near = made_ordinarily(choice, random, kNear, kCopies);
    REQUIRE(kCopies - kTries < near && near < kCopies);
  }
}

void test_staging_copy(uint64_t seed) {
  constexpr int64_t kMost = 9000; // from about 4096 on stores are chosen
  constexpr auto kUntouched = std::byte{0xee};
  Random random(seed);
  std::vector<std::byte> from(kMost + 64);
  for (auto& byte : from) {
    byte = static_cast<std::byte>(random.below(256));
  }
  alignas(64) static std::array<std::byte, kMost + 64> to;
  shm::StagingCopy copy;
  for (int i = 0; i < 500; ++i) {
    const int64_t bytes = random.between(1, kMost);
    const int64_t begin = random.below(64);
    to.fill(kUntouched);
    copy(to.data(), &from[begin], bytes);
    REQUIRE(std::equal(to.begin(), to.begin() + bytes, from.begin() + begin));
    const auto is_untouched = [](std::byte byte) { return byte == kUntouched; };
    REQUIRE(std::all_of(to.begin() + bytes, to.end(), is_untouched));
  }
}

void test_bell() {
  constexpr uint32_t kTurns = 3000;
  constexpr int kPlayers = 3;
  std::array<shm::Bell, kPlayers> bells;
  std::atomic<uint32_t> turn{0};
  std::vector<std::thread> players;
  for (uint32_t player = 0; player < kPlayers; ++player) {
    players.emplace_back([&, player] {
      for (uint32_t mine = player; mine < kTurns; mine += kPlayers) {
        while (true) {
          const uint32_t seen = bells[player].strikes();
          if (turn.load(std::memory_order_relaxed) == mine) {
            break;
          }
          const auto until = Clock::now() + kForEver;
          bells[player].wait(seen, until);
          REQUIRE(Clock::now() < until); // slept through
        }
        turn.store(mine + 1, std::memory_order_relaxed);
        bells[(player + 1) % kPlayers].ring();
      }
    });
  }
  for (auto& player : players) {
    player.join();
  }
  REQUIRE(turn == kTurns);
}

void test_ring() {
  constexpr uint32_t kLetters = 20'000;
  const auto ring = std::make_unique<shm::Ring>();
  std::thread writer([&] {
    for (uint32_t id = 0; id < kLetters;) {
      if (Letter* const letter = ring->vacant()) {
        letter->id = id;
        letter->bytes = Letter::kInline;
        letter->content.fill(static_cast<std::byte>(id));
        ring->publish();
        ++id;
      } else {
        std::this_thread::yield();
      }
    }
  });
  for (uint32_t id = 0; id < kLetters;) {
    if (const Letter* const letter = ring->front()) {
      REQUIRE(letter->id == id);
      const auto right = [&](std::byte byte) {
        return byte == static_cast<std::byte>(id);
      };
      REQUIRE(
          std::all_of(letter->content.begin(), letter->content.end(), right));
      ring->pop();
      ++id;
    } else {
      std::this_thread::yield();
    }
  }
  writer.join();
  REQUIRE(ring->front() == nullptr);
}

void test_outbox() {
  std::vector<shm::Segment> segments;
  for (const int file : segment_files(2)) {
    segments.emplace_back(file, 2).initialise(2);
    close(file); // it is mapped
  }
  shm::Outbox outbox(0, segments, {true, true}, /*segments_under_way=*/4);
  const auto& bell = segments[0].head().bell;
  shm::SendPtr send;
  while (!outbox.is_waiting()) {
    const auto sends = outbox.send({}, message(0, 0, 1), {1});
    REQUIRE(sends.size() == 1 && (!send || send->done));
    send = sends[0];
    outbox.flush();
  }
  REQUIRE(!send->done && bell.strikes() == 0);
  segments[1].ring_from(0).pop(); // the receiver makes room, and says nothing
  outbox.flush();
  REQUIRE(send->done && bell.strikes() == 1);
}

} // namespace hvd::model
