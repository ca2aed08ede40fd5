// Bindings of torch_hvd._C: a table of contents, no logic.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include "codec/choice.h"
#include "codec_bindings.h"
#include "device_bindings.h"
#include "holder.h"
#include "mpi_bindings.h"
#include "options_bindings.h"
#include "process_group.h"
#include "registry.h"
#include "shm_bindings.h"
#include "transport_bindings.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <cmath>

namespace py = pybind11;
using namespace pybind11::literals;

namespace {

c10::intrusive_ptr<hvd::ProcessGroupHVD> make_process_group(
    const c10::intrusive_ptr<c10d::Store>& store,
    std::unique_ptr<hvd::Transport> transport,
    std::unique_ptr<hvd::DeviceTransport> device,
    const c10::intrusive_ptr<hvd::Options>& options,
    const std::string& group,
    const std::vector<double>& stats_edges) {
  py::gil_scoped_release no_gil;
  return c10::make_intrusive<hvd::ProcessGroupHVD>(
      store,
      std::move(transport),
      std::move(device),
      options,
      group,
      stats_edges);
}

py::dict as_dict(const hvd::Statistics::Row& row) {
  return py::dict(
      "upto"_a = std::isinf(row.upto) ? py::object(py::none())
                                      : py::object(py::float_(row.upto)),
      "count"_a = row.count,
      "tensors"_a = row.tensors,
      "bytes"_a = row.bytes,
      "seconds"_a = row.seconds,
      "rates"_a = row.rates);
}

py::dict as_dict(hvd::Statistics& statistics) {
  const auto totals = statistics.totals();
  py::list rows;
  for (const auto& row : statistics.rows()) {
    rows.append(as_dict(row));
  }
  return py::dict(
      "group"_a = statistics.group(),
      "frames"_a = totals.frames,
      "responses"_a = totals.responses,
      "tensors"_a = totals.tensors,
      "tensor_bytes"_a = totals.tensor_bytes,
      "messages"_a = totals.messages,
      "wire_bytes"_a = totals.sent.network,
      "shared_memory_bytes"_a = totals.sent.shared_memory,
      "fusion_buffer_bytes"_a = totals.fusion_buffer_bytes,
      "elapsed"_a = totals.elapsed,
      "waiting"_a = totals.waiting,
      "rows"_a = rows);
}

} // namespace

PYBIND11_MODULE(_C, m, py::mod_gil_not_used()) {
  py::module_::import("torch._C._distributed_c10d");
  hvd::bind_options(m);
  hvd::bind_transports(m);
  hvd::bind_shm(m);
  hvd::bind_mpi(m);

  py::class_<
      hvd::ProcessGroupHVD,
      c10d::Backend,
      hvd::NoGilHolder<hvd::ProcessGroupHVD>>(m, "ProcessGroupHVD")
      .def(
          py::init(&make_process_group),
          py::arg("store"),
          py::arg("transport"),
          py::arg("device").none(true),
          py::arg("options"),
          py::arg("group"),
          py::arg("stats_edges"))
      .def_property_readonly("options", &hvd::ProcessGroupHVD::options)
      .def_property_readonly("store", &hvd::ProcessGroupHVD::store)
      .def_property_readonly("transport", &hvd::ProcessGroupHVD::transport)
      .def(
          "gather_into_tensor",
          &hvd::ProcessGroupHVD::gather_into_tensor,
          py::arg("output"),
          py::arg("input"),
          py::arg("opts"),
          py::call_guard<py::gil_scoped_release>())
      // Called where a new group is split from one with a device but has not
      // this rank; only NCCL's own needs to hear of it, and is not split.
      .def("perform_nocolor_split", [](py::object, py::object) {})
      .def(
          "_set_default_timeout",
          &hvd::ProcessGroupHVD::setTimeout,
          py::call_guard<py::gil_scoped_release>());

  m.def(
      "set_maker",
      [](const py::function& maker) {
        hvd::ProcessGroupHVD::set_maker(
            // For ever: it may be called as long as Python runs.
            [make = maker.inc_ref()](
                const auto& store, int rank, int size, const auto& options) {
              py::gil_scoped_acquire gil;
              return make(store, rank, size, options)
                  .template cast<c10::intrusive_ptr<c10d::Backend>>();
            });
      },
      py::arg("maker"));

  m.def(
      "end_all",
      [] { hvd::Registry::instance().end_all(); },
      py::call_guard<py::gil_scoped_release>());

  m.def(
      "override_compression",
      [](const std::optional<std::string>& name) {
        const auto before = hvd::overriding_compression();
        hvd::override_compression(
            name ? hvd::compression_named(*name) : std::nullopt);
        return before ? std::optional(hvd::name(*before)) : std::nullopt;
      },
      py::arg("name").none(true));

  m.def("statistics", [] {
    py::list groups;
    for (const auto& statistics : hvd::Registry::instance().statistics()) {
      groups.append(as_dict(*statistics));
    }
    return groups;
  });
  m.def(
      "start_timeline",
      [](const std::string& path, int rank, const std::string& run) {
        hvd::Timeline::instance().start(path, rank, run);
      },
      py::arg("path"),
      py::arg("rank"),
      py::arg("run"));
  m.def("stop_timeline", [] { hvd::Timeline::instance().stop(); });

  hvd::bind_codecs(m);
  hvd::bind_device_kernels(m);
}
