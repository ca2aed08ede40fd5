#include "transport/mpi/library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>

namespace hvd::mpi {

namespace {

constexpr std::string_view kBlanks = " \t\n";

/// Whether the text begins so, and then the rest of it.
bool skip(std::string_view& text, std::string_view begin) {
  const bool begins = text.starts_with(begin);
  text.remove_prefix(begins ? begin.size() : 0);
  return begins;
}

void skip_blanks(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
}

/// "MPICH Version:      5.0.2\n..." -> "MPICH 5.0.2"; "Open MPI v5.0.11, ..."
/// -> "Open MPI 5.0.11"; "Intel(R) MPI Library 2021.19 for Linux* OS" ->
/// "Intel(R) MPI 2021.19"; "MPI VERSION    : CRAY MPICH version 8.1.29 (ANL
/// base 3.4a2)" -> "CRAY MPICH 8.1.29". Empty for others.
std::string short_name(std::string_view text) {
  if (skip(text, "MPI VERSION")) {
    skip_blanks(text);
    skip(text, ":");
    skip_blanks(text);
  }
  for (const std::string_view maker :
       {"MPICH", "Open MPI", "Intel(R) MPI", "MVAPICH", "CRAY MPICH"}) {
    if (!skip(text, maker)) {
      continue;
    }
    const auto more = text.substr(0, text.find_first_of(kBlanks));
    if (!more.empty() && maker != "MVAPICH") { // which may be MVAPICH2-X
      return "";
    }
    text.remove_prefix(more.size());
    for (const std::string_view word : {" Version:", " version", " Library"}) {
      if (skip(text, word)) {
        break;
      }
    }
    skip_blanks(text);
    skip(text, "v");
    const auto version = text.substr(0, text.find_first_of(" \t\n,"));
    if (version.empty() || version[0] < '0' || version[0] > '9') {
      return "";
    }
    return std::string(maker) + std::string(more) + ' ' + std::string(version);
  }
  return "";
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

} // namespace

Library::Library(const std::vector<std::string>& candidates) {
  std::string reasons;
  for (const auto& candidate : candidates) {
    handle_ = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      link_map* loaded = nullptr;
      const bool known = dlinfo(handle_, RTLD_DI_LINKMAP, &loaded) == 0;
      path_ = known ? loaded->l_name : candidate;
      recognise();
      return;
    }
    reasons += (reasons.empty() ? "" : "; ") + std::string(dlerror());
  }
  throw std::invalid_argument("no libmpi can be opened: " + reasons);
}

void Library::recognise() {
  const std::string text = version_text();
  name_ = short_name(text);
  speaks_pmi_ = !name_.empty() && name_.rfind("Open MPI", 0) != 0;
  if (has_standard_abi()) {
    abi_ = Abi::Standard;
    if (name_.empty()) {
      name_ = first_line(text);
    }
  } else if (dlsym(handle_, "ompi_mpi_comm_world") != nullptr) {
    abi_ = Abi::OpenMpi;
    if (!name_.starts_with("Open MPI 4.") &&
        !name_.starts_with("Open MPI 5.")) {
      name_.clear(); // handles have other layouts, or may have
    }
  } else if (speaks_pmi_) {
    abi_ = Abi::Mpich;
  } else {
    name_.clear();
  }
  if (name_.empty()) {
    throw std::invalid_argument(
        path_ + " is an MPI that is not known here: " + first_line(text) +
        "; known are Open MPI 4 and 5, MPICH and its kin, and libraries with "
        "the ABI of MPI 5");
  }
}

bool Library::has_standard_abi() const {
  // Libraries with an older ABI may have the call, too: it then says -1.
  auto* const get_version = reinterpret_cast<int (*)(int*, int*)>(
      dlsym(handle_, "MPI_Abi_get_version"));
  int major = -1;
  int minor = -1;
  return get_version != nullptr && get_version(&major, &minor) == 0 &&
      major == 1;
}

bool Library::is_cuda_aware() const {
  // Extensions: of MPICH's two the other ends the process in some releases.
  constexpr int kCuda = 0;
  if (auto* const mpich = reinterpret_cast<int (*)(int, int*)>(
          dlsym(handle_, "MPIX_GPU_query_support"))) {
    int is_supported = 0;
    return mpich(kCuda, &is_supported) == 0 && is_supported == 1;
  }
  auto* const open_mpi =
      reinterpret_cast<int (*)()>(dlsym(handle_, "MPIX_Query_cuda_support"));
  return open_mpi != nullptr && open_mpi() == 1;
}

std::string Library::version_text() const {
  int (*get_version)(char*, int*) = nullptr;
  bind(get_version, "MPI_Get_library_version");
  std::array<char, 8192> text{}; // the most of any library
  int length = 0;
  get_version(text.data(), &length);
  return text.data();
}

void* Library::symbol(const char* name) const {
  void* const found = dlsym(handle_, name);
  if (found == nullptr) {
    throw std::invalid_argument(path_ + " has no " + name);
  }
  return found;
}

const char* name(Library::Abi abi) {
  switch (abi) {
    case Library::Abi::Standard:
      return "ABI of MPI 5";
    case Library::Abi::Mpich:
      return "ABI of MPICH";
    case Library::Abi::OpenMpi:
      return "ABI of Open MPI";
  }
  return "";
}

bool is_loaded(const std::string& name) {
  void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle != nullptr) {
    dlclose(handle);
  }
  return handle != nullptr;
}

} // namespace hvd::mpi
