#include "collectives/by_host.h"

#include <c10/core/ScalarType.h>

#include <cstddef>

namespace hvd {

Reduction inside_host(const Signature& signature) {
  const bool averages = signature.op == c10d::ReduceOp::AVG;
  return {
      averages ? c10d::ReduceOp::SUM : signature.op,
      1,
      signature.dtype,
      accumulation_dtype(signature.dtype)};
}

Reduction between_hosts(const Collective& collective) {
  const auto& signature = collective.signature;
  return {
      signature.op,
      collective.divisor,
      accumulation_dtype(signature.dtype),
      signature.dtype};
}

void reduce_by_host(
    const Hosts& hosts,
    const Collective& collective,
    const std::vector<const void*>& sources,
    const at::Tensor& out) {
  const auto inside = inside_host(collective.signature);
  const auto bytes =
      out.numel() * static_cast<int64_t>(c10::elementSize(inside.to));
  std::vector<std::byte> sums(hosts.count() * bytes);
  std::vector<const void*> of_hosts;
  for (int host = 0; host < hosts.count(); ++host) {
    std::vector<const void*> of_ranks;
    for (const int rank : hosts.ranks_on(host)) {
      of_ranks.push_back(sources[rank]);
    }
    std::byte* const sum = sums.data() + host * bytes;
    reduce_in_order(inside, of_ranks, sum, out.numel());
    of_hosts.push_back(sum);
  }
  reduce_in_order(
      between_hosts(collective), of_hosts, out.mutable_data_ptr(), out.numel());
}

} // namespace hvd
