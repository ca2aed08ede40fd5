#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

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

    /// The first elements, flat, seen as the dtype of `like`.
    at::Tensor as(const at::Tensor& like) const {
      return bytes_.narrow(0, 0, static_cast<int64_t>(like.nbytes()))
          .view(like.scalar_type());
    }

   private:
    ScratchPool* pool_;
    at::Tensor bytes_;
  };

  /// At least `bytes` long, with undefined content.
  Loan lend(int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) {
      return {*this, at::empty({bytes}, at::kByte)};
    }
    at::Tensor buffer = std::move(free_.back());
    free_.pop_back();
    if (buffer.numel() < bytes) {
      buffer = at::empty({bytes}, at::kByte);
    }
    return {*this, std::move(buffer)};
  }

 private:
  void take_back(at::Tensor buffer) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(buffer));
  }

  std::mutex mutex_;
  std::vector<at::Tensor> free_;
};

} // namespace hvd
