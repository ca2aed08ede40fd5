#include "transport/mpi/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace hvd::mpi {

EnvironmentDuring::EnvironmentDuring(
    const std::vector<std::string>& without,
    const std::map<std::string, std::string>& with) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    const auto begins = [&](const std::string& prefix) {
      return text.rfind(prefix, 0) == 0;
    };
    if (equals != std::string::npos &&
        std::any_of(without.begin(), without.end(), begins)) {
      taken_[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  for (const auto& [name, value] : taken_) {
    unsetenv(name.c_str());
  }
  for (const auto& [name, value] : with) {
    setenv(name.c_str(), value.c_str(), 1);
    added_.push_back(name);
  }
}

EnvironmentDuring::~EnvironmentDuring() {
  for (const auto& name : added_) {
    unsetenv(name.c_str());
  }
  for (const auto& [name, value] : taken_) {
    setenv(name.c_str(), value.c_str(), 1);
  }
}

} // namespace hvd::mpi
