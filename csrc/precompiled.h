// The headers of torch that most sources include, compiled once by setup.py.
// Sources do not include this file; they name what they use.
#include <torch/csrc/distributed/c10d/Backend.hpp>
