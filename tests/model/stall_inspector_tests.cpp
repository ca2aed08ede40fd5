#include "stall_inspector_tests.h"

#include "engine/stall_inspector.h"
#include "require.h"

#include <vector>

namespace hvd::model {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Limits = StallInspector::Limits;
using Times = std::vector<int64_t>;

Witness::Call in_collective(uint64_t seq) {
  Witness::Call at;
  at.waiting = true;
  at.seq = seq;
  return at;
}

Witness::Call in_message(uint64_t number) {
  Witness::Call at;
  at.message.number = number;
  return at;
}

/// In which looks something was due, by their number from 1.
struct Seen {
  Times compared;
  Times told;
  Times logged;
  Times ended;
  Times message_logged;
  Times message_ended;

  void add(int64_t look, const StallInspector::Due& due) {
    const auto add = [&](bool is_due, Times& times) {
      if (is_due) {
        times.push_back(look);
      }
    };
    add(due.to_compare, compared);
    add(due.to_tell, told);
    add(due.collective.to_log, logged);
    add(due.collective.to_end, ended);
    add(due.message.to_log, message_logged);
    add(due.message.to_end, message_ended);
  }
};

/// A rank that stays where it is from the first of `looks` on, one a tick.
Seen stay(
    const Witness::Call& at,
    const Limits& limits,
    Clock::duration tick,
    int64_t looks) {
  const auto start = Clock::now();
  StallInspector inspector(limits, start);
  REQUIRE(inspector.tick() == tick);
  inspector.inspect(at, start);
  Seen seen;
  for (int64_t i = 1; i <= looks; ++i) {
    seen.add(i, inspector.inspect(at, start + i * tick));
  }
  return seen;
}

} // namespace

void test_stalls_of_who_waits() {
  const auto unlimited = stay(in_collective(3), {}, seconds(1), 200);
  REQUIRE(unlimited.compared == (Times{1, 3, 7, 15, 31, 63, 123, 183}));
  REQUIRE(unlimited.told.empty());
  REQUIRE(unlimited.logged.empty() && unlimited.ended.empty());

  const auto limited =
      stay(in_collective(3), {seconds(4), seconds(10)}, seconds(1), 13);
  REQUIRE(limited.logged == (Times{4, 8, 12}));
  REQUIRE(limited.ended == (Times{10, 11, 12, 13}));
  REQUIRE(limited.message_logged.empty() && limited.message_ended.empty());

  // It looks so often that no limit is passed by more than a quarter of it.
  const auto soon = stay(
      in_collective(3),
      {milliseconds(800), milliseconds(400)},
      milliseconds(100),
      16);
  REQUIRE(soon.logged == (Times{8, 16}));
  REQUIRE(soon.ended.front() == 4);
  REQUIRE(soon.compared == (Times{10}));

  const auto message =
      stay(in_message(1), {seconds(4), seconds(10)}, seconds(1), 10);
  REQUIRE(message.message_logged == (Times{4, 8}));
  REQUIRE(message.message_ended == (Times{10}));
  REQUIRE(message.logged.empty() && message.ended.empty());
  REQUIRE(message.compared.empty());
}

void test_stalls_of_who_does_not() {
  REQUIRE(stay({}, {}, seconds(1), 20).told == (Times{5}));
  REQUIRE(stay(in_message(1), {}, seconds(1), 20).told == (Times{1}));
  REQUIRE(stay({}, {seconds(2), {}}, milliseconds(500), 20).told == (Times{1}));
  const auto idle = stay({}, {seconds(4), seconds(4)}, seconds(1), 20);
  REQUIRE(idle.logged.empty() && idle.ended.empty());
  REQUIRE(idle.message_logged.empty() && idle.message_ended.empty());
}

void test_stalls_begin_anew() {
  const auto start = Clock::now();
  const auto at = [&](int64_t second) { return start + seconds(second); };
  StallInspector inspector({seconds(8), {}}, start);
  inspector.inspect(in_collective(3), at(0));
  REQUIRE(inspector.inspect(in_collective(3), at(1)).to_compare);
  auto due = inspector.inspect(in_collective(4), at(2));
  REQUIRE(due.collective.age == seconds(0) && !due.to_compare);
  due = inspector.inspect(in_collective(4), at(3));
  REQUIRE(due.collective.age == seconds(1) && due.to_compare);
  REQUIRE(!inspector.inspect(in_collective(4), at(9)).collective.to_log);
  REQUIRE(inspector.inspect(in_collective(4), at(10)).collective.to_log);

  // What it has told others of one message they know of that one only.
  inspector.inspect(in_message(1), at(11));
  due = inspector.inspect(in_message(1), at(13));
  REQUIRE(due.to_tell && due.message.age == seconds(2));
  REQUIRE(due.collective.age == seconds(0));
  REQUIRE(!inspector.inspect(in_message(1), at(15)).to_tell);
  inspector.inspect(in_message(2), at(16));
  due = inspector.inspect(in_message(2), at(18));
  REQUIRE(due.to_tell && due.message.age == seconds(2));
}

} // namespace hvd::model
