#pragma once

#include <string>
#include <vector>

namespace hvd::mpi {

/// A libmpi that is open in this process, for as long as it lives: MPI can be
/// started only once, and no library survives being closed after that.
class Library {
 public:
  enum class Abi { Standard, Mpich, OpenMpi };

  /// Opens the first of `candidates` that there is, files or names for the
  /// dynamic linker, and finds out what it is. Throws std::invalid_argument:
  /// none could be opened, with the linker's reasons, or what was opened is no
  /// MPI that is known here.
  explicit Library(const std::vector<std::string>& candidates);

  /// The file.
  const std::string& path() const {
    return path_;
  }
  /// Name and version, as in "MPICH 5.0.2"; of a library with the ABI of MPI 5
  /// that is not known otherwise the first line of what it says.
  const std::string& name() const {
    return name_;
  }
  Abi abi() const {
    return abi_;
  }
  /// Whether processes can be made one world through PMI-1 by whoever answers,
  /// as far as is known.
  bool speaks_pmi() const {
    return speaks_pmi_;
  }
  /// Whether messages may be in the memory of CUDA devices. MPI runs: before it
  /// does Open MPI says no, and MPICH ends the process.
  bool is_cuda_aware() const;

  /// Throws std::invalid_argument where the library has no such symbol.
  void* symbol(const char* name) const;

  template <typename Function>
  void bind(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void recognise();
  bool has_standard_abi() const;
  std::string version_text() const;

  void* handle_ = nullptr;
  std::string path_;
  std::string name_;
  Abi abi_ = Abi::Standard;
  bool speaks_pmi_ = false;
};

const char* name(Library::Abi abi);

/// Whether a library of that file name is open in this process already.
bool is_loaded(const std::string& name);

} // namespace hvd::mpi
