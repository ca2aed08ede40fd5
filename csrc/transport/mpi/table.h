#pragma once

#include "transport/mpi/abi.h"
#include "transport/mpi/library.h"
#include "transport/transport.h"

#include <array>
#include <atomic>
#include <mutex>
#include <string>

namespace hvd::mpi {

/// The functions of a library that are used here, and how they are called.
///
/// Threads: every member may be called from any thread.
template <typename Abi>
class Table {
 public:
  using Comm = typename Abi::Comm;
  using Group = typename Abi::Group;
  using Request = typename Abi::Request;
  using Datatype = typename Abi::Datatype;
  using Errhandler = typename Abi::Errhandler;
  using Status = typename Abi::Status;

  template <typename... Arguments>
  struct Function {
    const char* name;
    int (*address)(Arguments...) = nullptr;
  };

  explicit Table(const Library& library)
      : predefined(Abi::predefined(library)) {
    const auto bind = [&](auto&... functions) {
      (library.bind(functions.address, functions.name), ...);
    };
    bind(initialized, finalized, init_thread, query_thread, finalize);
    bind(comm_rank, comm_size, comm_get_attr, comm_free);
    bind(comm_get_errhandler, comm_set_errhandler, errhandler_free);
    bind(comm_group, comm_create_group, group_incl, group_free);
    bind(isend, irecv, test, cancel, iprobe, error_string);
  }

  /// Calls, in turn with others if need be. Throws TransportError.
  template <typename... Parameters, typename... Arguments>
  void call(const Function<Parameters...>& function, Arguments... arguments)
      const {
    std::unique_lock<std::mutex> turn(mutex_, std::defer_lock);
    if (taking_turns_) {
      turn.lock();
    }
    const int code = function.address(arguments...);
    if (code != 0) {
      throw TransportError(std::string(function.name) + ": " + text_of(code));
    }
  }

  /// From now on one thread calls at a time.
  void take_turns() {
    taking_turns_ = true;
  }

  const Predefined<Abi> predefined;

  Function<int*> initialized{"MPI_Initialized"};
  Function<int*> finalized{"MPI_Finalized"};
  Function<int*, char***, int, int*> init_thread{"MPI_Init_thread"};
  Function<int*> query_thread{"MPI_Query_thread"};
  Function<> finalize{"MPI_Finalize"};
  Function<Comm, int*> comm_rank{"MPI_Comm_rank"};
  Function<Comm, int*> comm_size{"MPI_Comm_size"};
  Function<Comm, int, void*, int*> comm_get_attr{"MPI_Comm_get_attr"};
  Function<Comm, Errhandler*> comm_get_errhandler{"MPI_Comm_get_errhandler"};
  Function<Comm, Errhandler> comm_set_errhandler{"MPI_Comm_set_errhandler"};
  Function<Errhandler*> errhandler_free{"MPI_Errhandler_free"};
  Function<Comm*> comm_free{"MPI_Comm_free"};
  Function<Comm, Group*> comm_group{"MPI_Comm_group"};
  Function<Comm, Group, int, Comm*> comm_create_group{"MPI_Comm_create_group"};
  Function<Group, int, const int*, Group*> group_incl{"MPI_Group_incl"};
  Function<Group*> group_free{"MPI_Group_free"};
  Function<const void*, int, Datatype, int, int, Comm, Request*> isend{
      "MPI_Isend"};
  Function<void*, int, Datatype, int, int, Comm, Request*> irecv{"MPI_Irecv"};
  Function<Request*, int*, Status*> test{"MPI_Test"};
  Function<Request*> cancel{"MPI_Cancel"};
  Function<int, int, Comm, int*, Status*> iprobe{"MPI_Iprobe"};

 private:
  std::string text_of(int code) const {
    std::array<char, 1024> text{}; // more than any library's
    int length = 0;
    if (error_string.address(code, text.data(), &length) != 0) {
      return "error " + std::to_string(code);
    }
    return text.data();
  }

  Function<int, char*, int*> error_string{"MPI_Error_string"};
  std::atomic<bool> taking_turns_{false};
  mutable std::mutex mutex_;
};

} // namespace hvd::mpi
