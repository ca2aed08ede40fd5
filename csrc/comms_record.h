#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "engine/engine.h"

#include <memory>
#include <vector>

namespace hvd {

/// Describes a call to torch's profiler and to execution traces, as the backend
/// for NCCL does: the event "record_param_comms", from start() to the
/// destructor.
class CommsRecord {
 public:
  struct Call {
    const char* verb; ///< as name() has it, or "send" or "recv"
    const std::vector<at::Tensor>& inputs;
    const std::vector<at::Tensor>& outputs;
    const Collective* collective; ///< null for a message
    bool async;
    int peer = -1; ///< of a message
  };

  /// Null where nobody listens. `options`: of the group, for its name and its
  /// ranks in the whole job.
  static std::unique_ptr<CommsRecord> start(
      const c10d::Backend::Options& options,
      Engine& engine,
      const Call& call);

  CommsRecord(
      std::shared_ptr<c10::DebugInfoBase> info,
      std::vector<c10::IValue> arguments,
      const std::vector<at::Tensor>& outputs);

 private:
  const c10::DebugInfoGuard info_;
  const std::vector<c10::IValue> arguments_; ///< `event_` refers to them
  at::RecordFunction event_;
};

} // namespace hvd
