// The collectives that only move bytes: one exchange, straight between the
// callers' tensors.

#include "collectives/running.h"
#include "collectives/shards.h"
#include "collectives/stand_ins.h"

namespace hvd {

namespace {

class Move final : public Running {
 public:
  explicit Move(RequestPtr request) : request_(std::move(request)) {}

  void advance(Deadline /*deadline*/) override {}

  void finish(Deadline deadline) override {
    request_->wait(deadline);
  }

 private:
  RequestPtr request_;
};

void copy_own(
    const Collective& collective,
    const at::Tensor& to,
    const at::Tensor& from) {
  if (to.const_data_ptr() != from.const_data_ptr()) {
    copy_apart(collective.on_device.get(), [&] { flat(to).copy_(flat(from)); });
  }
}

} // namespace

RunningPtr start_move(const Collective& collective, Transport& transport) {
  const auto& [inputs, outputs] =
      std::tie(collective.inputs, collective.outputs);
  const auto verb = collective.signature.verb;
  const int root = collective.signature.root;
  const bool sends_to_root_only = verb == Verb::Gather;
  const bool receives_from_root_only = verb == Verb::Scatter;

  // One tensor stands for every peer; several are one for each.
  const auto for_peer = [](const std::vector<at::Tensor>& tensors, int peer) {
    return tensors.size() == 1 ? tensors[0] : tensors[peer];
  };
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  bool keeps_own = false;
  for (int peer = 0; peer < transport.size(); ++peer) {
    const bool sends_here =
        !inputs.empty() && (!sends_to_root_only || peer == root);
    const bool receives_here =
        !outputs.empty() && (!receives_from_root_only || peer == root);
    if (peer == transport.rank()) {
      keeps_own = sends_here && receives_here;
      continue;
    }
    if (receives_here) {
      receives.push_back({peer, flat(for_peer(outputs, peer))});
    }
    if (sends_here) {
      sends.push_back({peer, flat(for_peer(inputs, peer))});
    }
  }
  auto request = transport.exchange(sends, receives, first_lane(collective));
  if (keeps_own) { // while the rest is on its way
    const int rank = transport.rank();
    copy_own(collective, for_peer(outputs, rank), for_peer(inputs, rank));
  }
  return std::make_unique<Move>(std::move(request));
}

} // namespace hvd
