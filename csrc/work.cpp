#include "work.h"

#include "collectives/stand_ins.h"
#include "common/error.h"
#include "common/neutral_thread.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace hvd {

namespace {

void complete(
    c10::ivalue::Future& future,
    const std::exception_ptr& error,
    const std::vector<at::Tensor>& results) {
  if (error) {
    future.setError(error);
  } else {
    future.markCompleted(c10::IValue(results));
  }
}

} // namespace

std::optional<std::vector<at::Tensor>> if_profiled(
    const std::vector<at::Tensor>& tensors) {
  return at::hasCallbacks() ? std::optional(tensors) : std::nullopt;
}

void wait_for(
    Engine& engine,
    const Operation& operation,
    std::chrono::milliseconds timeout,
    const std::string& what) {
  if (timeout <= kNoTimeout) {
    engine.drive_until_done(operation);
  } else if (!engine.wait_until_done(operation, deadline_in(timeout))) {
    const auto& first = operation.collectives[0];
    C10_THROW_ERROR(
        DistBackendError,
        "hvd: timed out waiting " + std::to_string(timeout.count()) +
            " ms for " + what + first.signature.describe() + ", number " +
            std::to_string(first.seq) + " of its process group");
  }
}

WorkHVD::WorkHVD(
    std::shared_ptr<Engine> engine,
    c10d::OpType type,
    const char* title,
    const std::vector<at::Tensor>& inputs,
    std::vector<at::Tensor> results)
    : Work(
          engine->transport().rank(),
          type,
          at::hasCallbacks() ? title : nullptr,
          if_profiled(inputs)),
      engine_(std::move(engine)),
      results_(std::move(results)) {}

std::vector<at::Tensor> WorkHVD::result() {
  TORCH_CHECK(
      isCompleted(),
      "hvd: result() of work that is not done; call wait() before it");
  return results_;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkHVD::getFuture() {
  check_process();
  std::unique_lock<std::mutex> lock(mutex_);
  if (!future_) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()));
    if (completed_) {
      future_settled_ = true;
      complete(*future_, exception_, results_);
    } else {
      engine_->future_asked();
    }
  }
  return future_;
}

bool WorkHVD::isCompleted() {
  check_process();
  return Work::isCompleted();
}

std::function<void()> WorkHVD::conclude(std::exception_ptr error) {
  finish(error);
  std::lock_guard<std::mutex> lock(mutex_);
  // Between the two locks somebody may have asked for it, and found it done.
  if (!future_ || std::exchange(future_settled_, true)) {
    return {};
  }
  return [engine = engine_,
          future = future_,
          error = std::move(error),
          results = results_] {
    engine->future_answered();
    complete(*future, error, results);
  };
}

void WorkHVD::wait_for_future_and_rethrow() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::exception_ptr error;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    future = future_;
    error = exception_;
  }
  if (future) {
    future->wait();
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

void WorkHVD::check_process() {
  if (engine_->forked() && !Work::isCompleted()) {
    engine_->check_usable(describe().c_str());
  }
}

CollectiveWork::CollectiveWork(
    std::shared_ptr<Engine> engine,
    c10d::OpType type,
    const char* title,
    const std::vector<at::Tensor>& inputs,
    std::vector<at::Tensor> results)
    : WorkHVD(std::move(engine), type, title, inputs, std::move(results)),
      operation_(std::make_shared<Operation>()) {}

c10::intrusive_ptr<CollectiveWork> CollectiveWork::submit(
    const std::shared_ptr<Engine>& engine,
    c10d::OpType type,
    const std::vector<at::Tensor>& inputs,
    std::vector<at::Tensor> results,
    std::vector<Collective> collectives,
    bool caller_waits) {
  auto work = c10::make_intrusive<CollectiveWork>(
      engine,
      type,
      title(collectives[0].signature.verb),
      inputs,
      std::move(results));
  auto& operation = *work->operation_;
  operation.collectives = std::move(collectives);
  operation.on_done = [work](std::exception_ptr error) {
    return work->conclude(std::move(error));
  };
  engine->submit(work->operation_, caller_waits);
  work->seq_ = operation.collectives[0].seq;
  if (caller_waits) {
    engine->drive_until_done(operation);
  }
  return work;
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  check_process();
  if (!Work::isCompleted()) { // where the call itself has waited, it is
    wait_for(*engine_, *operation_, timeout);
  }
  wait_for_future_and_rethrow();
  return true;
}

uint64_t CollectiveWork::getSequencenumber() const {
  return seq_;
}

std::string CollectiveWork::describe() const {
  return operation_->collectives[0].signature.describe();
}

bool JointWork::isCompleted() {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) {
    return part->isCompleted();
  });
}

bool JointWork::isSuccess() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) {
    return part->isSuccess();
  });
}

bool JointWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& part : parts_) {
    part->wait(timeout);
  }
  return true;
}

void JointWork::synchronize() {
  for (const auto& part : parts_) {
    part->synchronize();
  }
}

MessageWork::MessageWork(
    std::shared_ptr<Engine> engine,
    c10d::OpType type,
    const char* title,
    int peer,
    at::Tensor buffer,
    at::Tensor tensor,
    std::chrono::milliseconds timeout,
    const Start& start)
    : WorkHVD(std::move(engine), type, title, {tensor}, {tensor}),
      call_{type == c10d::OpType::SEND, peer},
      buffer_(std::move(buffer)),
      tensor_(std::move(tensor)),
      timeout_(timeout) {
  if (has_streams(tensor_.device()) && !buffer_.is_alias_of(tensor_)) {
    on_device_.emplace(tensor_.device());
  }
  engine_->message_called();
  try {
    request_ = start(engine_->transport());
  } catch (const std::exception& e) {
    const auto failure = engine_->message_failed(describe(), e);
    engine_->fail_pending();
    std::rethrow_exception(backend_error(failure));
  }
}

MessageWork::~MessageWork() {
  if (!call_.sends || request_ == nullptr || Work::isCompleted() ||
      engine_->forked()) {
    return;
  }
  // The transport drops a message whose request is gone.
  const auto call = describe();
  auto keep = [engine = engine_.get(),
               request = request_,
               call,
               bytes = static_cast<int64_t>(buffer_.nbytes()),
               submitted = submitted_,
               deadline = deadline_in(timeout_)] {
    try {
      request->wait(deadline);
      engine->message_done(call, bytes, submitted);
    } catch (const std::exception& e) {
      engine->message_failed(call, e);
      engine->fail_pending();
    }
  };
  try {
    engine_->run_apart(call, std::move(keep), request_);
  } catch (const std::exception&) {
    // The group is closed, or there is no thread to be had: the message stays
    // behind, as it may with Gloo.
  }
}

std::string MessageWork::describe() const {
  return call_.describe();
}

void MessageWork::wait_until(Deadline deadline) {
  std::unique_lock<std::mutex> lock(request_mutex_);
  if (Work::isCompleted()) {
    return;
  }
  std::string failure;
  try {
    request_->wait(deadline);
    if (!buffer_.is_alias_of(tensor_)) {
      const NeutralThread neutral;
      copy_apart(
          on_device_ ? &*on_device_ : nullptr, [&] { tensor_.copy_(buffer_); });
    }
    engine_->message_done(
        describe(), static_cast<int64_t>(buffer_.nbytes()), submitted_);
  } catch (const std::exception& e) {
    failure = engine_->message_failed(describe(), e);
  }
  auto continuation =
      conclude(failure.empty() ? nullptr : backend_error(failure));
  lock.unlock();
  if (!failure.empty()) {
    engine_->fail_pending(); // runs callbacks, which may ask for this message
  }
  if (continuation) {
    engine_->continue_apart(std::move(continuation));
  }
}

bool MessageWork::wait(std::chrono::milliseconds timeout) {
  check_process();
  if (timeout <= kNoTimeout) {
    const Engine::MessageWait waiting(*engine_, call_);
    wait_until(deadline_in(timeout_));
  } else if (!wait_for_thread(deadline_in(timeout))) {
    C10_THROW_ERROR(
        DistBackendError,
        "hvd: timed out waiting " + std::to_string(timeout.count()) +
            " ms for " + describe());
  }
  wait_for_future_and_rethrow();
  return true;
}

void MessageWork::wait_apart() {
  std::function<void()> continuation; // may call this itself
  std::call_once(waited_apart_, [&] {
    auto self = c10::intrusive_ptr<MessageWork>::reclaim_copy(this);
    try {
      engine_->run_apart(
          describe(),
          [self = std::move(self)] {
            self->wait_until(deadline_in(self->timeout_));
          },
          request_);
    } catch (const c10::Error&) { // the group is closed
      std::unique_lock<std::mutex> lock(request_mutex_, std::try_to_lock);
      if (lock && !Work::isCompleted()) { // or who holds it concludes
        continuation = conclude(std::current_exception());
      }
    }
  });
  if (continuation) {
    engine_->continue_apart(std::move(continuation));
  }
}

bool MessageWork::wait_for_thread(Deadline deadline) {
  wait_apart();
  const Engine::MessageWait waiting(*engine_, call_);
  std::unique_lock<std::mutex> lock(mutex_);
  return cv_.wait_until(lock, deadline, [this] { return completed_; });
}

bool MessageWork::isCompleted() {
  check_process();
  if (looked_at_.exchange(true)) {
    wait_apart();
  }
  return WorkHVD::isCompleted();
}

c10::intrusive_ptr<c10::ivalue::Future> MessageWork::getFuture() {
  auto future = WorkHVD::getFuture();
  wait_apart();
  return future;
}

int MessageWork::sourceRank() const {
  TORCH_CHECK(
      !call_.sends,
      "hvd: the source rank of ",
      describe(),
      "; only what is received has one");
  return request_->source();
}

} // namespace hvd
