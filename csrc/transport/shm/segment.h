#pragma once

#include "transport/key.h"
#include "transport/shm/bell.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

// The memory that the ranks of a group share: each rank makes a segment, in
// which the others write what is for it.

namespace hvd::shm {

/// What travels through a ring: a part of a message, or where it lies.
struct Letter {
  enum class Form : uint32_t {
    Inline, ///< in the letter
    Staged, ///< in the sender's arena, at offset `place`
    Direct, ///< in the sender's own memory, at address `place`
    Done, ///< no message: what the reader sent as `id` has been received
    Kept, ///< likewise: it has been copied, and nobody has asked for it yet
  };
  static constexpr int64_t kInline = 192;

  Key key;
  Form form = Form::Inline;
  uint32_t id = 0; ///< the sender's, of this part
  uint32_t message = 0; ///< id of the message's first part
  int32_t padding = 0;
  int64_t bytes = 0; ///< of this part
  uint64_t place = 0;
  int64_t total = 0; ///< bytes of the message
  std::array<std::byte, kInline> content;
};
static_assert(sizeof(Letter) == 256);

/// Letters from one rank to another, in order. One thread at a time writes and
/// one reads, in different processes.
class Ring {
 public:
  /// Where the next letter goes; null if the ring is full.
  Letter* vacant() {
    const uint64_t written = written_.load(std::memory_order_relaxed);
    const bool full =
        written - read_.load(std::memory_order_acquire) == kLetters;
    return full ? nullptr : letter(written);
  }
  void publish() {
    written_.fetch_add(1, std::memory_order_release);
  }

  /// The oldest letter; null if there is none.
  const Letter* front() {
    const uint64_t read = read_.load(std::memory_order_relaxed);
    const bool empty = written_.load(std::memory_order_acquire) == read;
    return empty ? nullptr : letter(read);
  }
  void pop() {
    read_.fetch_add(1, std::memory_order_release);
  }

 private:
  static constexpr uint64_t kLetters = 512;

  Letter* letter(uint64_t number) {
    const auto place = number % kLetters * sizeof(Letter);
    return std::launder(reinterpret_cast<Letter*>(&letters_[place]));
  }

  alignas(64) std::atomic<uint64_t> written_{0};
  alignas(64) std::atomic<uint64_t> read_{0};
  /// Bytes, in which a letter begins to live as it is written: a ring that is
  /// not used takes no memory for them.
  alignas(64) std::array<std::byte, kLetters * sizeof(Letter)> letters_;
};

/// What precedes the rings in a segment.
struct SegmentHead {
  enum class State : uint32_t { Open, Left, Aborted, TimedOut };

  alignas(64) Bell bell; ///< rung for whatever is new to this rank
  alignas(64) std::atomic<State> state{State::Open};
};

/// A rank's segment: its head, a ring from each rank, its arena.
class Segment {
 public:
  static constexpr int64_t kArenaBytes = 8 * 1024 * 1024;

  /// Bytes of a segment in a group of `size` ranks.
  static int64_t length(int size);

  /// Maps the file `fd`, of that length, and leaves it open. Throws
  /// TransportError.
  Segment(int fd, int size);
  Segment(Segment&& other) noexcept;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  /// Makes the head and the rings of a file that is all zeros. By its owner,
  /// before others map it.
  void initialise(int size);

  SegmentHead& head() const;
  Ring& ring_from(int rank) const;
  std::byte* arena() const;

 private:
  std::byte* memory_;
  int64_t length_;
};

} // namespace hvd::shm
