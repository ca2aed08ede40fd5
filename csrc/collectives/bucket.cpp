#include "collectives/bucket.h"

#include "collectives/contribution.h"

namespace hvd {

namespace {

class Bucket final : public Running {
 public:
  Bucket(
      std::vector<const Collective*> members,
      const at::Tensor& buffer,
      Transport& transport)
      : members_(std::move(members)),
        bytes_(static_cast<std::byte*>(buffer.mutable_data_ptr())) {
    std::byte* to = bytes_;
    for (const Collective* member : members_) {
      to += write_contribution(*member, to);
    }
    whole_.signature = members_[0]->signature;
    whole_.signature.count = buffer.numel();
    whole_.inputs = whole_.outputs = {buffer};
    whole_.seq = members_[0]->seq;
    running_ = start(whole_, transport);
  }

  void advance(Deadline deadline) override {
    running_->advance(deadline);
  }

  void finish(Deadline deadline) override {
    running_->finish(deadline);
    const std::byte* from = bytes_;
    for (const Collective* member : members_) {
      const auto& output = member->outputs[0];
      const auto bytes = static_cast<int64_t>(output.nbytes());
      copy_bytes(output.mutable_data_ptr(), from, bytes);
      from += bytes;
    }
  }

 private:
  const std::vector<const Collective*> members_;
  std::byte* const bytes_;
  Collective whole_;
  RunningPtr running_;
};

} // namespace

RunningPtr start_bucket(
    std::vector<const Collective*> members,
    const at::Tensor& buffer,
    Transport& transport) {
  return std::make_unique<Bucket>(std::move(members), buffer, transport);
}

} // namespace hvd
