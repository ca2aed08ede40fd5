// The engine under random programs, on simulated ranks in one process: every
// program ends, in order, with the right results. Shared memory likewise. See
// --help.

#include "engine_tests.h"
#include "frame_track_tests.h"
#include "frames_tests.h"
#include "memory_tests.h"
#include "messages_tests.h"
#include "shm_tests.h"
#include "simulation.h"
#include "thread_clock_tests.h"
#include "unit_tests.h"
#include "stall_inspector_tests.h"

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace hvd::model;

struct Options {
  uint64_t first = 0;
  uint64_t seeds = 2000; ///< of the engine
  uint64_t message_seeds = 100; ///< of exchanges between threads
  int64_t jobs = 4; ///< simulations at a time
  int64_t limit = 60; ///< seconds for one of them
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--first") {
      options.first = std::strtoull(value, nullptr, 10);
    } else if (name == "--seeds") {
      options.seeds = std::strtoull(value, nullptr, 10);
    } else if (name == "--message-seeds") {
      options.message_seeds = std::strtoull(value, nullptr, 10);
    } else if (name == "--jobs") {
      options.jobs = std::strtoll(value, nullptr, 10);
    } else if (name == "--limit") {
      options.limit = std::strtoll(value, nullptr, 10);
    } else {
      std::cerr
          << "model [--first SEED] [--seeds COUNT] [--message-seeds COUNT] "
             "[--jobs AT_A_TIME] [--limit SECONDS_EACH]\n";
      std::exit(2);
    }
  }
  return options;
}

/// What a worker is at, for the watchdog.
struct Slot {
  std::mutex mutex;
  Simulation* simulation = nullptr;
  hvd::Deadline deadline;
};

void run_seeds(
    const Options& options,
    const c10::intrusive_ptr<c10d::Store>& store) {
  std::atomic<uint64_t> next{0};
  std::atomic<int64_t> working{options.jobs};
  std::vector<Slot> slots(options.jobs);
  std::vector<std::thread> workers;
  for (auto& slot : slots) {
    workers.emplace_back([&] {
      for (uint64_t i = next++; i < options.seeds; i = next++) {
        Simulation simulation(options.first + i, store);
        {
          std::lock_guard<std::mutex> lock(slot.mutex);
          slot.simulation = &simulation;
          slot.deadline =
              hvd::Clock::now() + std::chrono::seconds(options.limit);
        }
        simulation.run();
        std::lock_guard<std::mutex> lock(slot.mutex);
        slot.simulation = nullptr;
      }
      --working;
    });
  }
  while (working > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (auto& slot : slots) {
      std::lock_guard<std::mutex> lock(slot.mutex);
      if (slot.simulation != nullptr && hvd::Clock::now() > slot.deadline) {
        slot.simulation->die("it does not end");
      }
    }
  }
  for (auto& worker : workers) {
    worker.join();
  }
}

void run_message_seeds(const Options& options) {
  test_bell();
  test_ring();
  test_outbox();
  test_memory_of_who_gave_up();
  test_messages_that_stay_where_they_are();
  test_room_for_the_message_that_is_waited_for();
  test_short_messages_that_nobody_waits_for();
  test_abort_wakes_who_waits();
  test_what_has_come_before_a_farewell();
  test_whose_time_was_up();
  for (uint64_t i = 0; i < options.message_seeds; ++i) {
    test_arena(options.first + i);
    test_stores_choice(options.first + i);
    test_staging_copy(options.first + i);
    // What fails ends the process, and what hangs ends at the limit of whoever
    // has started it: either way this is the last line.
    std::cerr << "messages " << options.first + i << "\r";
    test_messages(options.first + i);
  }
}

} // namespace

int main(int argc, char** argv) {
  const auto options = parse(argc, argv);
  at::set_num_threads(1);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  test_hosts();
  test_rank_names();
  test_plan();
  test_codec_for();
  test_error_feedback();
  test_thread_clock();
  test_stalls_of_who_waits();
  test_stalls_of_who_does_not();
  test_stalls_begin_anew();
  test_window();
  test_window_of_encoded();
  test_ahead();
  test_memory_in_use();
  test_in_place(store);
  test_most_under_way();
  test_frame_track();
  test_burst(store);
  test_started_for_others(store);
  test_frame_steps();
  test_exchanges_of_frames(options.first);
  run_message_seeds(options);
  run_seeds(options, store);
  std::cout << "model: " << options.seeds << " seeds from " << options.first
            << " passed\n";
  return 0;
}
