#include "transport/transport.h"

namespace hvd {

namespace {

/// Messages in scratch memory.
class ScratchArrivals final : public Arrivals {
 public:
  ScratchArrivals(std::vector<ScratchPool::Loan> loans, RequestPtr request)
      : loans_(std::move(loans)), request_(std::move(request)) {}

  void wait(Deadline deadline) override {
    request_->wait(deadline);
  }
  const void* data(size_t place) const override {
    return loans_[place].data();
  }

 private:
  const std::vector<ScratchPool::Loan> loans_;
  const RequestPtr request_;
};

} // namespace

ArrivalsPtr Transport::receive(
    const std::vector<int>& peers,
    int64_t bytes,
    const Lane& lane) {
  std::vector<ScratchPool::Loan> loans;
  std::vector<Transfer> receives;
  for (const int peer : peers) {
    loans.push_back(scratch().lend(bytes));
    receives.push_back({peer, loans.back().bytes(bytes)});
  }
  return std::make_unique<ScratchArrivals>(
      std::move(loans), exchange({}, receives, lane));
}

} // namespace hvd
