#include "options_bindings.h"

#include "options.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace hvd {

namespace {

using Milliseconds = std::chrono::milliseconds;
using OptionsPtr = c10::intrusive_ptr<Options>;

template <typename Visitor>
void for_each_setting(const Visitor& visit) {
  visit("transport", &Options::transport);
  visit("fusion_threshold", &Options::fusion_threshold);
  visit("fusion_cutoff", &Options::fusion_cutoff);
  visit("check", &Options::check);
  visit("compression", &Options::compression);
  visit("compression_min_bytes", &Options::compression_min_bytes);
  visit("block", &Options::block);
  visit("error_feedback", &Options::error_feedback);
  visit("stall_check_time", &Options::stall_check_time);
  visit("stall_shutdown_time", &Options::stall_shutdown_time);
}

/// What makes options like these.
py::dict arguments(const Options& self) {
  py::dict given;
  if (self.timeout != kBackendDefaultTimeout) {
    given["timeout"] = self.timeout;
  }
  for_each_setting([&](const char* name, auto setting) {
    if (self.*setting) {
      given[name] = self.*setting;
    }
  });
  return given;
}

OptionsPtr copied(const Options& self) {
  return c10::make_intrusive<Options>(self);
}

std::string described(const Options& self) {
  std::string text;
  for (const auto& [name, value] : arguments(self)) {
    text += (text.empty() ? "" : ", ") + py::str(name).cast<std::string>() +
        "=" + py::repr(value).cast<std::string>();
  }
  return "torch_hvd.Options(" + text + ")";
}

} // namespace

void bind_options(py::module_& m) {
  py::class_<Options, c10d::Backend::Options, OptionsPtr> options(m, "Options");
  options.def(
      py::init([](Milliseconds timeout,
                  std::optional<std::string> transport,
                  std::optional<int64_t> fusion_threshold,
                  std::optional<int64_t> fusion_cutoff,
                  std::optional<bool> check,
                  std::optional<std::string> compression,
                  std::optional<int64_t> compression_min_bytes,
                  std::optional<int32_t> block,
                  std::optional<bool> error_feedback,
                  std::optional<double> stall_check_time,
                  std::optional<double> stall_shutdown_time) {
        auto made = c10::make_intrusive<Options>(timeout);
        made->transport = std::move(transport);
        made->fusion_threshold = fusion_threshold;
        made->fusion_cutoff = fusion_cutoff;
        made->check = check;
        made->compression = std::move(compression);
        made->compression_min_bytes = compression_min_bytes;
        made->block = block;
        made->error_feedback = error_feedback;
        made->stall_check_time = stall_check_time;
        made->stall_shutdown_time = stall_shutdown_time;
        return made;
      }),
      py::kw_only(),
      py::arg("timeout") = Milliseconds(kBackendDefaultTimeout),
      py::arg("transport") = py::none(),
      py::arg("fusion_threshold") = py::none(),
      py::arg("fusion_cutoff") = py::none(),
      py::arg("check").noconvert() = py::none(), // or "0" would be true
      py::arg("compression") = py::none(),
      py::arg("compression_min_bytes") = py::none(),
      py::arg("block") = py::none(),
      py::arg("error_feedback").noconvert() = py::none(),
      py::arg("stall_check_time") = py::none(),
      py::arg("stall_shutdown_time") = py::none());
  for_each_setting([&](const char* name, auto setting) {
    options.def_readwrite(name, setting);
  });
  options.def("__copy__", &copied)
      .def(
          "__deepcopy__",
          [](const Options& self, const py::dict&) { return copied(self); })
      .def("__repr__", &described)
      // As torch.multiprocessing.spawn needs, for arguments.
      .def("__reduce__", [](const py::object& self) {
        const auto make = py::module_::import("functools")
                              .attr("partial")(
                                  py::type::of(self),
                                  **arguments(self.cast<const Options&>()));
        return py::make_tuple(make, py::tuple());
      });
  // Where users, and pickle, find it: _C must not be the first to be imported.
  options.attr("__module__") = "torch_hvd";
}

} // namespace hvd
