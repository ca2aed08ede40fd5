#include "transport/transport.h"

#include <numeric>

namespace hvd {

namespace {

std::vector<int> all_but(int rank, int size) {
  std::vector<int> others(size);
  std::iota(others.begin(), others.end(), 0);
  others.erase(others.begin() + rank);
  return others;
}

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

Transport::Transport(int rank, int size, Hosts hosts)
    : rank_(rank),
      size_(size),
      others_(all_but(rank, size)),
      hosts_(std::move(hosts)) {}

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
