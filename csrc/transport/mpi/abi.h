#pragma once

#include "transport/mpi/library.h"

#include <cstddef>
#include <cstdint>

/// Three binary interfaces of MPI: what the calls take, and the constants that
/// are used here. Everything else is written once, over these.
///
/// Sources: the MPI 5.0 standard, chapter "Application Binary Interface"; the
/// mpi.h of MPICH, the same since its ABI initiative of 2013; that of Open MPI,
/// the same since 4.0.
namespace hvd::mpi {

/// The handles that a library has from the start.
template <typename Abi>
struct Predefined {
  typename Abi::Comm world;
  typename Abi::Datatype byte;
  typename Abi::Errhandler errors_return;
};

/// Handles are pointers that hold small numbers.
struct StandardAbi {
  using Comm = struct StandardComm*;
  using Group = struct StandardGroup*;
  using Request = struct StandardRequest*;
  using Datatype = struct StandardDatatype*;
  using Errhandler = struct StandardErrhandler*;
  struct Status {
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
    int internal[5];
  };
  static constexpr int kAnySource = -1;
  static constexpr int kTagUpperBound = 501;
  static constexpr int kThreadMultiple = 4096;

  static Predefined<StandardAbi> predefined(const Library& /*library*/) {
    return {
        handle<Comm>(0x101),
        handle<Datatype>(0x247),
        handle<Errhandler>(0x143)};
  }

 private:
  template <typename Handle>
  static Handle handle(uintptr_t number) {
    return reinterpret_cast<Handle>(number);
  }
};

/// Handles are numbers of 32 bits.
struct MpichAbi {
  using Comm = int;
  using Group = int;
  using Request = int;
  using Datatype = int;
  using Errhandler = int;
  struct Status {
    int count_low;
    int count_high_and_cancelled;
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
  };
  static constexpr int kAnySource = -2;
  static constexpr int kTagUpperBound = 0x64400001;
  static constexpr int kThreadMultiple = 3;

  static Predefined<MpichAbi> predefined(const Library& /*library*/) {
    return {0x44000000, 0x4c00010d, 0x54000001};
  }
};

/// Handles are addresses of the library's own objects.
struct OpenMpiAbi {
  using Comm = struct OpenMpiComm*;
  using Group = struct OpenMpiGroup*;
  using Request = struct OpenMpiRequest*;
  using Datatype = struct OpenMpiDatatype*;
  using Errhandler = struct OpenMpiErrhandler*;
  struct Status {
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
    int cancelled;
    size_t bytes;
  };
  static constexpr int kAnySource = -1;
  static constexpr int kTagUpperBound = 0;
  static constexpr int kThreadMultiple = 3;

  static Predefined<OpenMpiAbi> predefined(const Library& library) {
    return {
        static_cast<Comm>(library.symbol("ompi_mpi_comm_world")),
        static_cast<Datatype>(library.symbol("ompi_mpi_byte")),
        static_cast<Errhandler>(library.symbol("ompi_mpi_errors_return"))};
  }
};

} // namespace hvd::mpi
