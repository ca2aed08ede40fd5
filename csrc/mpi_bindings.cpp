#include "mpi_bindings.h"

#include "transport/mpi/mpi.h"
#include "transport/mpi/world.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace hvd {

namespace {

using mpi::Library;
using mpi::World;

void start_unlaunched(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const std::string& name,
    const std::string& mapping,
    std::chrono::milliseconds timeout) {
  World::instance().start_unlaunched(
      store, {rank, size, name, mapping, timeout});
}

} // namespace

void bind_mpi(py::module_& module) {
  const auto without_gil = py::call_guard<py::gil_scoped_release>();

  py::class_<Library>(module, "MpiLibrary")
      .def_property_readonly("path", &Library::path)
      .def_property_readonly("name", &Library::name)
      .def_property_readonly(
          "abi", [](const Library& self) { return mpi::name(self.abi()); })
      .def_property_readonly("speaks_pmi", &Library::speaks_pmi);

  py::class_<World::Place>(module, "MpiPlace")
      .def_readonly("world", &World::Place::name)
      .def_readonly("rank", &World::Place::rank)
      .def_readonly("size", &World::Place::size)
      .def_readonly("any_threads", &World::Place::any_threads)
      .def_readonly("cuda_aware", &World::Place::cuda_aware);

  using Rank = MpiTransport::Rank;
  py::class_<Rank>(module, "MpiRank")
      .def(
          py::init([](int number, int life, bool by_tcp) {
            return Rank{number, life, by_tcp};
          }),
          py::arg("number"),
          py::arg("life"),
          py::arg("by_tcp"));

  module.def("mpi_is_loaded", &mpi::is_loaded, py::arg("name"));
  module.def(
      "open_mpi",
      [](const std::vector<std::string>& candidates) {
        return World::instance().open(candidates);
      },
      py::arg("candidates"),
      without_gil);
  module.def(
      "mpi_place", [] { return World::instance().place(); }, without_gil);
  module.def(
      "start_launched_mpi",
      [] { World::instance().start_launched(); },
      without_gil);
  module.def(
      "start_unlaunched_mpi",
      &start_unlaunched,
      py::arg("store"),
      py::arg("rank"),
      py::arg("size"),
      py::arg("name"),
      py::arg("mapping"),
      py::arg("timeout"),
      without_gil);
  module.def(
      "mpi_transport",
      [](int rank,
         const std::vector<Rank>& ranks,
         int tag,
         double ranks_per_core,
         bool cuda_aware,
         std::chrono::milliseconds timeout) -> std::unique_ptr<Transport> {
        return std::make_unique<MpiTransport>(
            rank, ranks, tag, ranks_per_core, cuda_aware, timeout);
      },
      py::arg("rank"),
      py::arg("ranks"),
      py::arg("tag"),
      py::arg("ranks_per_core"),
      py::arg("cuda_aware"),
      py::arg("timeout"),
      without_gil);
}

} // namespace hvd
