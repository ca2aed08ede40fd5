#pragma once

#include "common/collective.h"

#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace hvd {

/// What precedes the payload of every frame: one cache line.
struct alignas(64) FrameHeader {
  uint64_t seq = 0; ///< place of the collective in the group's sequence
  uint64_t tail = 0; ///< the last collective this rank has submitted
  uint64_t history = 0; ///< of everything started before, see Agreement
  int64_t payload_bytes = 0;
  Signature signature;
};
static_assert(sizeof(FrameHeader) == 64);

/// The ranks called different collectives. All of them know, so the group is
/// still in step and usable.
class Mismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One rank's side of the agreement that travels in frame headers: all ranks
/// run the same collectives in the same order.
///
/// Threads: one may start() while another check()s.
class Agreement {
 public:
  /// Takes note that this rank starts a collective, the next in sequence.
  void start(const Collective& collective);

  /// The header of the frame that carries `collective`, which start() has not
  /// seen yet. `tail`: see FrameHeader.
  FrameHeader header(const Collective& collective, uint64_t tail) const;

  /// Compares the frames of all ranks. Throws Mismatch, which says what each
  /// rank called, on every rank alike; or std::runtime_error if the ranks have
  /// parted before.
  void check(
      const Collective& collective,
      const std::vector<const std::byte*>& frames);

 private:
  /// Sum of Signature::hash over all that was started. A sum, so that one
  /// collective found different can be taken out again.
  std::atomic<uint64_t> history_{0};
};

} // namespace hvd
