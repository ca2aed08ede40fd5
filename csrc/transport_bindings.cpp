#include "transport_bindings.h"

#include "transport/device.h"
#include "transport/gloo.h"
#include "transport/routed.h"
#include "transport/solo.h"
#include "transport/tcp/tcp.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace hvd {

using TransportPtr = std::unique_ptr<Transport>;

// A transport belongs to Python until a group, or another transport, takes it.
void bind_transports(py::module_& module) {
  py::class_<Transport, py::smart_holder>(module, "Transport")
      .def_property_readonly("name", &Transport::name);

  py::class_<DeviceTransport, py::smart_holder>(module, "DeviceTransport")
      .def(
          py::init([](c10::intrusive_ptr<c10d::Backend> backend,
                      const std::string& device) {
            return std::make_unique<DeviceTransport>(
                std::move(backend), c10::Device(device).type());
          }),
          py::arg("backend"),
          py::arg("device"))
      .def_property_readonly("name", &DeviceTransport::name);

  module.def("solo_transport", []() -> TransportPtr {
    return std::make_unique<SoloTransport>();
  });
  module.def(
      "gloo_transport",
      [](const c10::intrusive_ptr<c10d::Backend>& gloo) -> TransportPtr {
        return std::make_unique<GlooTransport>(gloo);
      },
      py::arg("gloo"));
  module.def(
      "tcp_transport",
      [](int rank,
         const std::vector<std::vector<int>>& sockets,
         double ranks_per_core,
         std::chrono::milliseconds patience) -> TransportPtr {
        return std::make_unique<TcpTransport>(
            rank, sockets, ranks_per_core, patience);
      },
      py::arg("rank"),
      py::arg("sockets"),
      py::arg("ranks_per_core"),
      py::arg("patience"));
  module.def(
      "routed_transport",
      [](TransportPtr near,
         TransportPtr far,
         const std::vector<int>& hosts) -> TransportPtr {
        return std::make_unique<RoutedTransport>(
            std::move(near), std::move(far), Hosts(hosts));
      },
      py::arg("near").none(true),
      py::arg("far"),
      py::arg("hosts"));
}

} // namespace hvd
