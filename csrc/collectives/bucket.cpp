#include "collectives/bucket.h"

#include "collectives/contribution.h"

#include <c10/core/ScalarType.h>

#include <algorithm>

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
      const int64_t written = write_contribution(*member, to);
      const int64_t bytes = bucket_bytes(*member);
      std::fill(to + written, to + bytes, std::byte{0});
      to += bytes;
    }
    whole_.signature = members_[0]->signature;
    whole_.signature.count = buffer.numel();
    whole_.inputs = whole_.outputs = {buffer};
    whole_.divisor = members_[0]->divisor;
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
      from += bucket_bytes(*member);
    }
  }

 private:
  const std::vector<const Collective*> members_;
  std::byte* const bytes_;
  Collective whole_;
  RunningPtr running_;
};

} // namespace

int64_t bucket_bytes(const Collective& collective) {
  const auto& signature = collective.signature;
  const int64_t block = signature.codec.block;
  const int64_t blocks = (signature.count + block - 1) / block;
  return blocks * block *
      static_cast<int64_t>(c10::elementSize(signature.dtype));
}

RunningPtr start_bucket(
    std::vector<const Collective*> members,
    const at::Tensor& buffer,
    Transport& transport) {
  return std::make_unique<Bucket>(std::move(members), buffer, transport);
}

} // namespace hvd
