#pragma once

#include <map>
#include <string>
#include <vector>

namespace hvd::mpi {

/// The environment of the process is another one while this lives.
class EnvironmentDuring {
 public:
  /// Takes away variables that begin so, then adds some.
  EnvironmentDuring(
      const std::vector<std::string>& without,
      const std::map<std::string, std::string>& with);
  EnvironmentDuring(const EnvironmentDuring&) = delete;
  EnvironmentDuring& operator=(const EnvironmentDuring&) = delete;
  ~EnvironmentDuring();

 private:
  std::map<std::string, std::string> taken_;
  std::vector<std::string> added_;
};

} // namespace hvd::mpi
