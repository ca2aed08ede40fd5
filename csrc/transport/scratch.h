#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace hvd {

/// Buffers that are used again: fresh memory costs a page fault every 4 KB,
/// which is more than copying into it.
///
/// Threads: every member may be called from any thread.
class ScratchPool {
 public:
  /// A buffer on loan; goes back to the pool, which must outlive it.
  class Loan {
   public:
    Loan(ScratchPool& pool, at::Tensor bytes)
        : pool_(&pool), bytes_(std::move(bytes)) {}
    Loan(Loan&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)),
          bytes_(std::move(other.bytes_)) {}
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    Loan& operator=(Loan&&) = delete;
    ~Loan() {
      if (pool_ != nullptr) {
        pool_->take_back(std::move(bytes_));
      }
    }

    void* data() const {
      return bytes_.mutable_data_ptr();
    }

    /// The first of them, uint8.
    at::Tensor bytes(int64_t count) const {
      return bytes_.narrow(0, 0, count);
    }

    /// The first elements, flat, seen as the dtype of `like`.
    at::Tensor as(const at::Tensor& like) const {
      return bytes(static_cast<int64_t>(like.nbytes()))
          .view(like.scalar_type());
    }

   private:
    ScratchPool* pool_;
    at::Tensor bytes_;
  };

  /// At least so long, with undefined content. Of lengths that are powers of
  /// two, so that a buffer serves again for others of about its length.
  Loan lend(int64_t bytes) {
    const auto length =
        static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
    std::lock_guard<std::mutex> lock(mutex_);
    auto& free = free_[length];
    if (free.empty()) {
      return {*this, at::empty({length}, at::kByte)};
    }
    at::Tensor buffer = std::move(free.back());
    free.pop_back();
    return {*this, std::move(buffer)};
  }

 private:
  void take_back(at::Tensor buffer) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_[buffer.numel()].push_back(std::move(buffer));
  }

  std::mutex mutex_;
  std::map<int64_t, std::vector<at::Tensor>> free_; ///< by length
};

} // namespace hvd
