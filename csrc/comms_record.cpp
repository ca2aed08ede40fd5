#include "comms_record.h"

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <string>
#include <tuple>
#include <utility>

namespace hvd {

namespace {

/// Ranks of the job in order: the first and the distance of any two neighbours;
/// -1 where distances differ.
std::pair<int, int> start_and_stride(const std::vector<uint64_t>& ranks) {
  if (ranks.empty()) {
    return {0, 1};
  }
  const int start = static_cast<int>(ranks[0]);
  if (ranks.size() == 1) {
    return {start, 0};
  }
  const int stride = static_cast<int>(ranks[1]) - start;
  for (size_t i = 2; i < ranks.size(); ++i) {
    if (static_cast<int>(ranks[i]) - static_cast<int>(ranks[i - 1]) != stride) {
      return {start, -1};
    }
  }
  return {start, stride};
}

int64_t elements(const std::vector<at::Tensor>& tensors) {
  int64_t count = 0;
  for (const auto& tensor : tensors) {
    count += tensor.numel();
  }
  return count;
}

} // namespace

std::unique_ptr<CommsRecord> CommsRecord::start(
    const c10d::Backend::Options& options,
    Engine& engine,
    const Call& call) {
  if (!at::hasCallbacks()) {
    return nullptr;
  }
  const auto size = engine.transport().size();
  const auto seq = static_cast<int64_t>(engine.submitted());
  const std::string verb = call.verb;
  const bool is_message = call.collective == nullptr;
  // Readers of traces take a message's rank for the one at its other end.
  const auto rank = is_message ? call.peer : engine.transport().rank();
  const bool has_splits =
      !is_message && call.collective->signature.verb == Verb::Alltoall;
  const auto splits =
      has_splits ? Witness::Splits::of(*call.collective) : Witness::Splits();
  const auto [start, stride] = start_and_stride(options.global_ranks_in_group);
  const std::tuple<std::string, std::string> group(options.group_name, "");
  auto info = std::make_shared<torch::ParamCommsDebugInfo>(
      group,
      rank,
      std::string(verb),
      elements(call.inputs),
      elements(call.outputs),
      call.inputs.empty() ? at::kByte : call.inputs[0].scalar_type(),
      splits.sends,
      splits.expects,
      start,
      stride,
      size,
      call.async);
  info->setSequenceInfo(seq, is_message);
  // The order that readers of execution traces know.
  std::vector<c10::IValue> arguments = {
      call.inputs,
      std::make_tuple(seq, is_message),
      group,
      rank,
      verb,
      splits.sends,
      splits.expects,
      start,
      stride,
      size,
      call.async};
  return std::make_unique<CommsRecord>(
      std::move(info), std::move(arguments), call.outputs);
}

CommsRecord::CommsRecord(
    std::shared_ptr<c10::DebugInfoBase> info,
    std::vector<c10::IValue> arguments,
    const std::vector<at::Tensor>& outputs)
    : info_(c10::DebugInfoKind::PARAM_COMMS_INFO, std::move(info)),
      arguments_(std::move(arguments)),
      event_(at::RecordScope::FUNCTION) {
  if (event_.needsOutputs()) {
    event_.setOutputs(std::vector<c10::IValue>{outputs});
  }
  event_.before(at::kParamCommsCallName, &arguments_);
}

} // namespace hvd
