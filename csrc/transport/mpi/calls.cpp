#include "transport/mpi/calls.h"

#include "transport/mpi/bound.h"

namespace hvd::mpi {

std::unique_ptr<Calls> bind(const Library& library) {
  switch (library.abi()) {
    case Library::Abi::Standard:
      return std::make_unique<BoundCalls<StandardAbi>>(library);
    case Library::Abi::Mpich:
      return std::make_unique<BoundCalls<MpichAbi>>(library);
    case Library::Abi::OpenMpi:
      return std::make_unique<BoundCalls<OpenMpiAbi>>(library);
  }
  return nullptr;
}

} // namespace hvd::mpi
