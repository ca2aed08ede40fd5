#include "engine/error_feedback.h"

namespace hvd {

std::shared_ptr<Residual> ErrorFeedback::next(const Collective& collective) {
  const auto& tensor = collective.copy_in.empty() ? collective.inputs[0]
                                                  : collective.copy_in[0].from;
  const c10::Storage& storage = tensor.storage();
  const void* const address = tensor.const_data_ptr();
  auto slot = slots_.find(address);
  if (slot != slots_.end() && slot->second.round == round_) {
    // Those that a whole round has passed over are gone.
    std::erase_if(
        slots_, [&](const auto& entry) { return entry.second.round < round_; });
    ++round_;
  }
  const auto is_same = [&](const Slot& before) {
    return before.storage.lock().get() == storage.unsafeGetStorageImpl() &&
        before.signature == collective.signature && before.follows == last_;
  };
  if (slot == slots_.end() || !is_same(slot->second)) {
    Slot anew{
        storage.getWeakStorageImpl(),
        collective.signature,
        last_,
        std::make_shared<Residual>()};
    slot = slots_.insert_or_assign(address, std::move(anew)).first;
  }
  slot->second.round = round_;
  last_ = address;
  return slot->second.residual;
}

} // namespace hvd
