#pragma once

#include <cstdlib>
#include <iostream>

/// Ends the process where `condition` does not hold.
#define REQUIRE(condition) \
  hvd::model::require(condition, #condition, __FILE__, __LINE__)

namespace hvd::model {

inline void require(
    bool condition,
    const char* text,
    const char* file,
    int line) {
  if (!condition) {
    std::cerr << file << ':' << line << ": not so: " << text << std::endl;
    std::_Exit(1);
  }
}

} // namespace hvd::model
