#include "transport/mpi/world.h"

#include "common/fork.h"
#include "transport/mpi/environment.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <cstdlib>

namespace hvd::mpi {

World& World::instance() {
  // Never destroyed: MPI has threads and files that outlive static destructors.
  static World& world = *std::unique_ptr<World>(new World()).release();
  return world;
}

Library World::open(const std::vector<std::string>& candidates) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!communicator_) {
    const Library library(candidates);
    calls_ = bind(library);
    library_ = library;
  }
  return *library_;
}

std::optional<World::Place> World::place() {
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_INTERNAL_ASSERT(calls_);
  TORCH_CHECK_VALUE(
      !communicator_ || depth_ == fork_depth(),
      "MPI was started before this process was forked off, and cannot be here; "
      "start processes with the spawn or forkserver method");
  if (!communicator_ && calls_->is_initialised()) {
    adopt();
  }
  return communicator_ ? std::optional(place_) : std::nullopt;
}

void World::start_launched() {
  std::lock_guard<std::mutex> lock(mutex_);
  start();
  finalise_at_exit();
}

// MPI's end waits for all processes, whose launcher takes one that ends without
// it for dead, and ends the others. That is as it should be where this one has
// failed: they may wait for it. Of sys.exit only the C library tells the
// status. Without a launcher nobody watches, so a rank need not wait.
void World::finalise_at_exit() {
  const auto end = [](int status, void* /*unused*/) {
    if (status == 0) {
      instance().finalise();
    }
  };
  TORCH_CHECK(on_exit(end, nullptr) == 0, "hvd: no memory for an exit handler");
}

void World::start_unlaunched(
    c10::intrusive_ptr<c10d::Store> store,
    PmiResponder::Place place) {
  std::lock_guard<std::mutex> lock(mutex_);
  responder_ = std::make_unique<PmiResponder>(std::move(store), place);
  // What another launcher has left there means other processes than these. And
  // none started later may think that it belongs to this world.
  const EnvironmentDuring during({"PMI_", "PMIX_"}, responder_->variables());
  start();
  place_.name = place.name;
}

void World::start() {
  TORCH_INTERNAL_ASSERT(calls_ && !communicator_);
  calls_->initialise();
  adopt();
}

void World::adopt() {
  TORCH_CHECK_VALUE(
      !calls_->is_finalised(),
      "MPI was finalised in this process; it cannot be started again");
  place_.any_threads = calls_->settle_threads();
  place_.cuda_aware = library_->is_cuda_aware();
  communicator_ = calls_->world();
  place_.rank = communicator_->rank();
  place_.size = communicator_->size();
  depth_ = fork_depth();
  running_ = calls_.get();
}

Communicator& World::communicator() {
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_INTERNAL_ASSERT(communicator_);
  return *communicator_;
}

bool World::is_usable() {
  // No lock: in a process forked off, a thread that is not there may hold it.
  Calls* const calls = running_;
  return calls != nullptr && depth_ == fork_depth() && !calls->is_finalised();
}

void World::abandon(std::shared_ptr<void> buffers) {
  std::lock_guard<std::mutex> lock(mutex_);
  abandoned_.push_back(std::move(buffers));
}

void World::retire(std::unique_ptr<Membership> membership) {
  std::lock_guard<std::mutex> lock(mutex_);
  retired_.push_back(std::move(membership));
  retired_.remove_if([](const auto& retired) {
    try {
      return retired->dissolve();
    } catch (const TransportError&) {
      return true; // its communicators stay
    }
  });
}

bool World::ends_together() {
  std::lock_guard<std::mutex> lock(mutex_);
  return responder_ == nullptr;
}

void World::meet(const std::vector<int>& ranks) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& retired : retired_) {
    retired->tell(ranks);
  }
}

void World::finalise() {
  if (depth_ != fork_depth()) {
    return; // a process forked off has this handler, too
  }
  const std::unique_lock<std::shared_mutex> unused(in_use_);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!running_) {
    return;
  }
  running_ = nullptr;
  try {
    calls_->finalise();
  } catch (const std::exception& e) {
    LOG(WARNING) << "hvd: " << e.what();
  }
}

} // namespace hvd::mpi
