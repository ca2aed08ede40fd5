#pragma once

#include "memory_transport.h"
#include "program.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace hvd::model {

/// Runs a program: an engine per rank and group, and the threads that call it.
/// Whatever is not as it should be ends the process, with the program and where
/// each rank was.
class Simulation {
 public:
  Simulation(uint64_t seed, const c10::intrusive_ptr<c10d::Store>& store);
  ~Simulation();

  void run();

  /// Prints where each rank is, and ends the process.
  [[noreturn]] void die(const std::string& why);

 private:
  class Rank;

  void compare_frames(Network& network);
  /// Blocks a rank until the signal of the program is given.
  void await_signal();
  void give_signal();

  const Program program_;
  std::vector<std::shared_ptr<Network>> networks_; ///< of the groups
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool signalled_ = false;
};

} // namespace hvd::model
