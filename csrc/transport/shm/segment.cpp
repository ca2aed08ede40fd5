#include "transport/shm/segment.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace hvd::shm {

namespace {

constexpr int64_t kPage = 4096;

constexpr int64_t whole_pages(int64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

constexpr int64_t kRings = whole_pages(sizeof(SegmentHead));
constexpr int64_t kRing = whole_pages(sizeof(Ring));

} // namespace

// The arena comes before the rings: where it is does not depend on the size.
int64_t Segment::length(int size) {
  return kRings + kArenaBytes + size * kRing;
}

Segment::Segment(int fd, int size)
    : memory_(
          static_cast<std::byte*>(mmap(
              nullptr,
              static_cast<size_t>(length(size)),
              PROT_READ | PROT_WRITE,
              MAP_SHARED,
              fd,
              0))),
      length_(length(size)) {
  if (memory_ == MAP_FAILED) {
    throw TransportError(
        "shm: cannot map " + std::to_string(length_) +
        " bytes of shared memory: " + std::strerror(errno));
  }
}

Segment::Segment(Segment&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), length_(other.length_) {}

Segment::~Segment() {
  if (memory_ != nullptr) {
    munmap(memory_, static_cast<size_t>(length_));
  }
}

void Segment::initialise(int size) {
  new (memory_) SegmentHead;
  for (int rank = 0; rank < size; ++rank) {
    new (&ring_from(rank)) Ring; // not Ring(), which would write all of it
  }
}

SegmentHead& Segment::head() const {
  return *reinterpret_cast<SegmentHead*>(memory_);
}

Ring& Segment::ring_from(int rank) const {
  return *reinterpret_cast<Ring*>(
      memory_ + kRings + kArenaBytes + rank * kRing);
}

std::byte* Segment::arena() const {
  return memory_ + kRings;
}

} // namespace hvd::shm
