#pragma once

#include <c10/util/Exception.h>

#include "transport/transport.h"

#include <utility>
#include <vector>

namespace hvd {

/// Some ranks of a transport as a group of their own, for its collectives. A
/// rank is the place in the list.
class Subgroup final : public Transport {
 public:
  /// `ranks`: of `whole`, which outlives this; this one at `rank`.
  Subgroup(Transport& whole, std::vector<int> ranks, int rank)
      : Transport(rank, static_cast<int>(ranks.size())),
        whole_(whole),
        ranks_(std::move(ranks)) {}

  const char* name() const override {
    return whole_.name();
  }
  bool moves_by_itself() const override {
    return whole_.moves_by_itself();
  }
  ScratchPool& scratch() override {
    return whole_.scratch();
  }
  RequestPtr exchange(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      const Lane& lane) override {
    return whole_.exchange(renamed(sends), renamed(receives), lane);
  }
  ArrivalsPtr receive(
      const std::vector<int>& peers,
      int64_t bytes,
      const Lane& lane) override {
    std::vector<int> renamed_peers;
    renamed_peers.reserve(peers.size());
    for (const int peer : peers) {
      renamed_peers.push_back(ranks_[peer]);
    }
    return whole_.receive(renamed_peers, bytes, lane);
  }
  RequestPtr exchange_frames(
      const std::vector<Transfer>& /*sends*/,
      const std::vector<Transfer>& /*receives*/) override {
    return no_such_verb();
  }
  RequestPtr send(const at::Tensor&, int, int) override {
    return no_such_verb();
  }
  RequestPtr recv(const at::Tensor&, int, int) override {
    return no_such_verb();
  }
  RequestPtr recv_any(const at::Tensor&, int) override {
    return no_such_verb();
  }
  int max_tag() const override {
    return -1;
  }
  void abort() noexcept override {
    whole_.abort();
  }

 private:
  static RequestPtr no_such_verb() {
    TORCH_INTERNAL_ASSERT(false, "a subgroup is for exchanges only");
  }

  std::vector<Transfer> renamed(std::vector<Transfer> transfers) const {
    for (auto& transfer : transfers) {
      transfer.peer = ranks_[transfer.peer];
    }
    return transfers;
  }

  Transport& whole_;
  const std::vector<int> ranks_;
};

} // namespace hvd
