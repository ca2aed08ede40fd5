#include "shm_bindings.h"

#include "transport/shm/shm.h"

#include <pybind11/stl.h>

#include <sys/prctl.h>

namespace py = pybind11;

namespace hvd {

namespace {

/// None where the memory of the process cannot be read.
std::optional<py::bytes> read_memory(pid_t pid, uint64_t address, size_t size) {
  std::string content(size, '\0');
  const bool read = shm::read_memory(
      pid,
      address,
      reinterpret_cast<std::byte*>(content.data()),
      static_cast<int64_t>(size));
  return read ? std::optional<py::bytes>(content) : std::nullopt;
}

} // namespace

void bind_shm(py::module_& module) {
  using Rank = ShmTransport::Rank;
  py::class_<Rank>(module, "ShmRank")
      .def(
          py::init([](int number,
                      int segment,
                      pid_t pid,
                      int life,
                      bool reads_memory) {
            return Rank{number, segment, pid, life, reads_memory};
          }),
          py::arg("number"),
          py::arg("segment"),
          py::arg("pid"),
          py::arg("life"),
          py::arg("reads_memory"));
  module.def(
      "shm_transport",
      [](int place,
         const std::vector<Rank>& ranks,
         double ranks_per_core) -> std::unique_ptr<Transport> {
        return std::make_unique<ShmTransport>(place, ranks, ranks_per_core);
      },
      py::arg("place"),
      py::arg("ranks"),
      py::arg("ranks_per_core"));
  module.def("shm_segment_bytes", &shm::Segment::length, py::arg("size"));
  module.def(
      "initialise_shm_segment",
      &ShmTransport::initialise,
      py::arg("segment"),
      py::arg("size"));
  module.def(
      "read_memory",
      &read_memory,
      py::arg("pid"),
      py::arg("address"),
      py::arg("size"));
  // Where Yama lets only ancestors attach, siblings need this process's leave.
  module.def("allow_reading_memory", [] {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  });
}

} // namespace hvd
