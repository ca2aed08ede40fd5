#include "messages_tests.h"

#include "common/descriptor.h"
#include "groups.h"
#include "messages.h"
#include "require.h"
#include "transport/shm/segment.h"
#include "transport/tcp/tcp.h"

#include <ATen/ops/empty.h>

#include <unistd.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace hvd::model {

void test_memory_of_who_gave_up() {
  constexpr int64_t kBytes = 1024 * 1024; // read from the sender's memory
  const Group group = share_memory(2, /*attach=*/true);
  auto sent = message(0, 0, kBytes);
  auto received = at::empty({kBytes}, at::kByte);
  const auto receive = group[1]->exchange({}, {{0, received}}, {0, 0, 0});
  const auto send = group[0]->exchange({{1, sent}}, {}, {0, 0, 0});
  group[0]->abort();
  sent.zero_(); // it is the caller's again
  try {
    receive->wait(for_ever());
    REQUIRE(!"a message from who gave up");
  } catch (const TransportError&) {
  }
}

void test_messages_that_stay_where_they_are() {
  constexpr uint64_t kMessages = 3 * shm::Segment::kArenaBytes / kLongestStaged;
  const Group group = share_memory(2, /*attach=*/true);
  std::vector<RequestPtr> sends;
  ArrivalsPtr held;
  for (uint64_t number = 0; number < kMessages; ++number) {
    const Lane lane{number, 0, 0};
    auto arrivals = group[1]->receive({0}, kLongestStaged, lane);
    const auto buffer = message(number, 0, kLongestStaged);
    sends.push_back(group[0]->exchange({{1, buffer}}, {}, lane));
    arrivals->wait(for_ever());
    check(arrivals->data(0), kLongestStaged, number, 0);
    if (number == 0) {
      held = std::move(arrivals); // its place must not be used again
    } else {
      arrivals = nullptr;
      sends.back()->wait(for_ever());
    }
  }
  check(held->data(0), kLongestStaged, 0, 0);
  held = nullptr;
  sends.front()->wait(for_ever());
}

void test_room_for_the_message_that_is_waited_for() {
  constexpr uint64_t kMessages = 3 * shm::Segment::kArenaBytes / kLongestStaged;
  for (const bool posted : {true, false}) {
    const Group group = share_memory(2, /*attach=*/true);
    std::vector<ArrivalsPtr> arrivals(kMessages);
    std::vector<RequestPtr> sends;
    const auto post = [&](uint64_t number) {
      arrivals[number] = group[1]->receive({0}, kLongestStaged, {number, 0, 0});
    };
    const auto end = [&](uint64_t number) {
      arrivals[number]->wait(for_ever());
      check(arrivals[number]->data(0), kLongestStaged, number, 0);
      arrivals[number] = nullptr;
    };
    for (uint64_t number = 0; number < kMessages; ++number) {
      const auto buffer = message(number, 0, kLongestStaged);
      sends.push_back(group[0]->exchange({{1, buffer}}, {}, {number, 0, 0}));
      if (posted) {
        post(number);
      }
    }
    for (uint64_t number = kMessages; number-- > 0;) { // the last one first
      if (!posted) {
        post(number);
      }
      end(number);
    }
    for (const auto& send : sends) {
      send->wait(for_ever());
    }
  }
}

void test_short_messages_that_nobody_waits_for() {
  constexpr uint64_t kMessages = 100; // more than a socket holds
  constexpr int64_t kBytes = 64 * 1024;
  const Group group = connect(2, /*rails=*/1, /*cramped=*/false);
  std::vector<at::Tensor> received;
  std::vector<RequestPtr> receives;
  std::vector<RequestPtr> sends;
  for (uint64_t number = 0; number < kMessages; ++number) {
    received.push_back(at::empty({kBytes}, at::kByte));
    receives.push_back(
        group[1]->exchange({}, {{0, received.back()}}, {number, 0, 0}));
    sends.push_back(
        group[0]->exchange(
            {{1, message(number, 0, kBytes)}}, {}, {number, 0, 0}));
  }
  for (const auto& send : sends) {
    send->wait(for_ever());
  }
  for (uint64_t number = 0; number < kMessages; ++number) {
    receives[number]->wait(for_ever());
    check(received[number], number, 0);
  }
}

void test_abort_wakes_who_waits() {
  constexpr int kRounds = 20; // that the waiting thread has to lose once
  constexpr std::chrono::seconds kAtOnce{3}; // it looks by itself after 7.5
  for (int round = 0; round < kRounds; ++round) {
    const Group group = connect(2, /*rails=*/1, /*cramped=*/false);
    auto received = at::empty({1024}, at::kByte);
    const auto receive = group[1]->exchange({}, {{0, received}}, {0, 0, 0});
    std::thread waits([&] {
      try {
        receive->wait(for_ever());
        REQUIRE(!"a message that nobody sent");
      } catch (const TransportError&) {
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5)); // it sleeps
    const auto begun = Clock::now();
    group[0]->abort();
    group[1]->abort();
    waits.join();
    REQUIRE(Clock::now() - begun < kAtOnce);
  }
}

void test_what_has_come_before_a_farewell() {
  constexpr int kPeers = 100;
  std::vector<std::vector<int>> sockets(kPeers + 1);
  std::deque<Descriptor> peers;
  std::vector<Transfer> receives;
  for (int peer = 0; peer < kPeers; ++peer) {
    const auto [own, far] = socket_pair();
    sockets[peer] = {own};
    peers.emplace_back(far);
    receives.push_back({peer, at::empty({1}, at::kByte)});
  }
  TcpTransport transport(kPeers, sockets, 1, std::chrono::seconds(30));
  const auto request = transport.exchange_frames({}, receives);
  const auto say = [&](int peer, const tcp::Header& header) {
    const auto bytes = static_cast<ssize_t>(sizeof(header));
    REQUIRE(write(peers[peer], &header, sizeof(header)) == bytes);
  };
  for (int peer = 0; peer < kPeers; ++peer) {
    say(peer, {tcp::Header::Kind::Bytes, 0, Key::of_frame(), 1});
    REQUIRE(write(peers[peer], "x", 1) == 1);
    if (peer == 0) {
      say(peer, {tcp::Header::Kind::GaveUp, 0, {}, -1});
    }
  }
  request->wait(for_ever());
}

void test_whose_time_was_up() {
  const auto [zero, one] = socket_pair();
  const auto [one_to_two, two] = socket_pair();
  // What ranks 0 and 2 tell each other does not come.
  const auto [zero_to_nobody, nobody] = socket_pair();
  const auto [two_to_nobody, nobody_either] = socket_pair();
  const Descriptor stays_open(nobody);
  const Descriptor stays_open_too(nobody_either);
  const auto make = [](int rank, std::vector<std::vector<int>> sockets) {
    return std::make_unique<TcpTransport>(
        rank, std::move(sockets), 1, std::chrono::seconds(30));
  };
  const Group group = [&] {
    Group all;
    all.push_back(make(0, {{}, {zero}, {zero_to_nobody}}));
    all.push_back(make(1, {{one}, {}, {one_to_two}}));
    all.push_back(make(2, {{two_to_nobody}, {two}, {}}));
    return all;
  }();
  const auto error_of = [&](int rank, Deadline deadline) -> std::string {
    try {
      const auto from = rank == 0 ? 1 : 0;
      auto received = at::empty({1}, at::kByte);
      group[rank]->exchange({}, {{from, received}}, {0, 0, 0})->wait(deadline);
    } catch (const TransportError& error) {
      group[rank]->abort();
      return error.what();
    }
    return "none";
  };
  REQUIRE(error_of(0, Clock::now()) == "tcp: Timed out waiting for rank 1");
  for (const int rank : {1, 2}) {
    REQUIRE(error_of(rank, for_ever()) == "tcp: rank 0 timed out and gave up");
  }
}

} // namespace hvd::model
