#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <map>
#include <string>
#include <thread>

namespace hvd::mpi {

/// Stands in for the process manager that MPICH expects: answers what the
/// library of this process asks for on a socket, in the words of PMI-1, from a
/// c10d store. So ranks that no MPI has started become one MPI world.
///
/// PMI-1 is lines of "cmd=NAME key=value ..."; see the PMI-1 wire protocol in
/// RFC 13 of the Flux project. Keys and values have no spaces.
class PmiResponder {
 public:
  struct Place {
    int rank;
    int size;
    /// The name of the world: of no other one, ever. MPICH names files by it.
    std::string name;
    /// Where ranks are, as PMI_process_mapping has it.
    std::string mapping;
    std::chrono::milliseconds timeout; ///< for ranks to meet
  };

  /// `store`: its keys are this world's own.
  PmiResponder(c10::intrusive_ptr<c10d::Store> store, Place place);
  PmiResponder(const PmiResponder&) = delete;
  PmiResponder& operator=(const PmiResponder&) = delete;
  /// Ends the conversation.
  ~PmiResponder();

  /// In the environment of MPI_Init: where the library finds this.
  std::map<std::string, std::string> variables() const;

 private:
  using Fields = std::map<std::string, std::string>;

  void serve();
  /// Empty: the command wants no answer.
  std::string answer(const Fields& command);
  std::string answer_get(const std::string& key);
  void meet();

  const c10::intrusive_ptr<c10d::Store> store_;
  const Place place_;
  int meetings_ = 0;
  int ours_ = -1; ///< this end of the pair of sockets
  int theirs_ = -1; ///< the library's
  // C++'s own: a Python thread would be frozen when the library says goodbye,
  // after main().
  std::thread thread_;
};

} // namespace hvd::mpi
