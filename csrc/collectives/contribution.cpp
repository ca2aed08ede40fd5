#include "collectives/contribution.h"

#include "collectives/by_host.h"
#include "collectives/reduce.h"

#include <c10/core/ScalarType.h>

#include <cstring>

namespace hvd {

namespace {

int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

std::vector<const void*> at_offset(
    const std::vector<const std::byte*>& contributions,
    int64_t offset) {
  std::vector<const void*> sources;
  sources.reserve(contributions.size());
  for (const std::byte* contribution : contributions) {
    sources.push_back(contribution + offset);
  }
  return sources;
}

void reduce_slice(
    const Collective& collective,
    const std::vector<const std::byte*>& contributions,
    int64_t offset,
    const at::Tensor& out) {
  const auto& signature = collective.signature;
  reduce_in_order(
      {signature.op, collective.divisor, signature.dtype, signature.dtype},
      at_offset(contributions, offset),
      out.mutable_data_ptr(),
      out.numel());
}

} // namespace

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

int64_t contribution_bytes(const Collective& collective) {
  const auto& signature = collective.signature;
  const auto element = static_cast<int64_t>(c10::elementSize(signature.dtype));
  switch (signature.verb) {
    case Verb::Barrier:
      return 0;
    case Verb::Alltoall:
    case Verb::SparseAllreduce:
      return -1;
    default:
      return signature.count * element;
  }
}

int64_t write_contribution(const Collective& collective, std::byte* out) {
  int64_t written = 0;
  for (const auto& input : collective.inputs) {
    copy_bytes(out + written, input.const_data_ptr(), bytes_of(input));
    written += bytes_of(input);
  }
  return written;
}

void apply_contributions(
    const Collective& collective,
    int rank,
    const Hosts& hosts,
    const std::vector<const std::byte*>& contributions) {
  const auto& outputs = collective.outputs;
  const int root = collective.signature.root;
  switch (collective.signature.verb) {
    case Verb::Allreduce:
      if (hosts.have_levels()) {
        reduce_by_host(
            hosts, collective, at_offset(contributions, 0), outputs[0]);
        break;
      }
      [[fallthrough]];
    case Verb::Reduce:
      for (const auto& out : outputs) {
        reduce_slice(collective, contributions, 0, out);
      }
      break;
    case Verb::ReduceScatter: {
      int64_t offset = 0;
      for (int r = 0; r < rank; ++r) {
        offset += bytes_of(collective.inputs[r]);
      }
      reduce_slice(collective, contributions, offset, outputs[0]);
      break;
    }
    case Verb::Broadcast:
      for (const auto& out : outputs) {
        copy_bytes(out.mutable_data_ptr(), contributions[root], bytes_of(out));
      }
      break;
    case Verb::Allgather:
    case Verb::Gather:
      for (size_t r = 0; r < outputs.size(); ++r) {
        copy_bytes(
            outputs[r].mutable_data_ptr(),
            contributions[r],
            bytes_of(outputs[r]));
      }
      break;
    case Verb::Scatter:
      copy_bytes(
          outputs[0].mutable_data_ptr(),
          contributions[root] + rank * bytes_of(outputs[0]),
          bytes_of(outputs[0]));
      break;
    default: // Barrier: having met is the result
      break;
  }
}

} // namespace hvd
