#include "engine/error_feedback.h"

#include <algorithm>

namespace hvd {

namespace {

// After so many steps without it a tensor is not expected to come again: models
// that are trained in turns may pass over each other for many.
constexpr uint64_t kSteps = 64;

// Tensors in whose wake the same one comes, as the first of a model does that
// is trained more often than another. In a new order at each step all would.
constexpr ptrdiff_t kPredecessors = 4;

} // namespace

void ErrorFeedback::enlist(Collective& collective) {
  const auto& tensor = collective.copy_in.empty() ? collective.inputs[0]
                                                  : collective.copy_in[0].from;
  const c10::Storage& storage = tensor.storage();
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const Place place{address, std::exchange(last_, address)};

  if (std::ranges::any_of(at(address), [this](const auto& entry) {
        return entry.second.step == step_;
      })) {
    end_step();
  }
  auto slot = slots_.find(place);
  if (slot == slots_.end() ||
      slot->second.storage.lock().get() != storage.unsafeGetStorageImpl() ||
      slot->second.signature != collective.signature) {
    if (slot == slots_.end()) {
      make_room_at(address);
    }
    Slot anew{
        storage.getWeakStorageImpl(),
        collective.signature,
        std::make_shared<Residual>()};
    slot = slots_.insert_or_assign(place, std::move(anew)).first;
  }
  slot->second.step = step_;
  collective.residual = slot->second.residual;
  collective.step = step_;
}

void ErrorFeedback::end_step() {
  std::erase_if(slots_, [this](const auto& entry) {
    const Slot& slot = entry.second;
    return slot.storage.expired() || slot.step + kSteps < step_;
  });
  ++step_;
}

ErrorFeedback::SlotsAt ErrorFeedback::at(uintptr_t address) {
  return {
      slots_.lower_bound({address, 0}), slots_.lower_bound({address + 1, 0})};
}

void ErrorFeedback::make_room_at(uintptr_t address) {
  const auto slots = at(address);
  if (std::ranges::distance(slots) >= kPredecessors) {
    slots_.erase(std::ranges::min_element(slots, {}, [](const auto& entry) {
      return entry.second.step;
    }));
  }
}

void ErrorFeedback::begin(const Collective& collective) {
  Residual& residual = *collective.residual;
  if (not_finite_in_ >= residual.step) {
    residual = {};
  }
  residual.step = collective.step;
}

void ErrorFeedback::end(const Collective& collective) {
  if (!collective.residual->finite) {
    not_finite_in_ = std::max(not_finite_in_.load(), collective.step);
  }
}

} // namespace hvd
