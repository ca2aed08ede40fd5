// Bindings of torch_hvd._C: a table of contents, no logic.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include "holder.h"
#include "process_group.h"
#include "transport/gloo.h"
#include "transport/solo.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace {

using Milliseconds = std::chrono::milliseconds;
using OptionsPtr = c10::intrusive_ptr<hvd::Options>;

c10::intrusive_ptr<hvd::ProcessGroupHVD> make_process_group(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend>& gloo,
    const OptionsPtr& options,
    const std::string& group) {
  py::gil_scoped_release no_gil;
  std::unique_ptr<hvd::Transport> transport;
  if (gloo) {
    transport = std::make_unique<hvd::GlooTransport>(gloo);
  } else {
    transport = std::make_unique<hvd::SoloTransport>();
  }
  return c10::make_intrusive<hvd::ProcessGroupHVD>(
      store, std::move(transport), options, group);
}

} // namespace

PYBIND11_MODULE(_C, m) {
  py::module_::import("torch._C._distributed_c10d");
  py::class_<hvd::Options, c10d::Backend::Options, OptionsPtr>(
      m, "Options", py::dynamic_attr())
      .def(
          py::init([](Milliseconds timeout,
                      const std::string& transport,
                      std::optional<int64_t> fusion_threshold,
                      std::optional<int64_t> fusion_cutoff,
                      std::optional<bool> check) {
            auto options = c10::make_intrusive<hvd::Options>(timeout);
            options->transport = transport;
            options->fusion_threshold = fusion_threshold;
            options->fusion_cutoff = fusion_cutoff;
            options->check = check;
            return options;
          }),
          py::kw_only(),
          py::arg("timeout") = Milliseconds(kBackendDefaultTimeout),
          py::arg("transport") = "auto",
          py::arg("fusion_threshold") = py::none(),
          py::arg("fusion_cutoff") = py::none(),
          py::arg("check") = py::none())
      .def_readwrite("transport", &hvd::Options::transport)
      .def_readwrite("fusion_threshold", &hvd::Options::fusion_threshold)
      .def_readwrite("fusion_cutoff", &hvd::Options::fusion_cutoff)
      .def_readwrite("check", &hvd::Options::check)
      .def(
          "__copy__",
          [](const hvd::Options& self) {
            return c10::make_intrusive<hvd::Options>(self);
          })
      .def("__deepcopy__", [](const hvd::Options& self, const py::dict&) {
        return c10::make_intrusive<hvd::Options>(self);
      });

  py::class_<
      hvd::ProcessGroupHVD,
      c10d::Backend,
      hvd::NoGilHolder<hvd::ProcessGroupHVD>>(m, "ProcessGroupHVD")
      .def(
          py::init(&make_process_group),
          py::arg("store"),
          py::arg("gloo").none(true),
          py::arg("options"),
          py::arg("group"))
      .def_property_readonly("options", &hvd::ProcessGroupHVD::options)
      .def(
          "_set_default_timeout",
          &hvd::ProcessGroupHVD::setTimeout,
          py::call_guard<py::gil_scoped_release>());

  m.def(
      "shutdown_all",
      &hvd::ProcessGroupHVD::shutdown_all,
      py::call_guard<py::gil_scoped_release>());
}
