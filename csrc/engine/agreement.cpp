#include "engine/agreement.h"

#include <algorithm>
#include <cstring>
#include <sstream>

namespace hvd {

namespace {

FrameHeader read_header(const std::byte* frame) {
  FrameHeader header;
  std::memcpy(&header, frame, sizeof(header));
  return header;
}

} // namespace

void Agreement::start(const Collective& collective) {
  history_ += collective.signature.hash(collective.seq);
}

FrameHeader Agreement::header(const Collective& collective, uint64_t tail)
    const {
  FrameHeader header;
  header.seq = collective.seq;
  header.tail = tail;
  header.history = history_;
  header.signature = collective.signature;
  return header;
}

void Agreement::check(
    const Collective& collective,
    const std::vector<const std::byte*>& frames) {
  std::vector<FrameHeader> headers;
  headers.reserve(frames.size());
  for (const std::byte* frame : frames) {
    headers.push_back(read_header(frame));
  }
  const auto all_equal = [&](auto field) {
    return std::all_of(headers.begin(), headers.end(), [&](const auto& header) {
      return field(header) == field(headers[0]);
    });
  };
  const bool same_place = all_equal([](const auto& h) { return h.seq; });
  const bool same_call = all_equal([](const auto& h) { return h.signature; });
  const bool same_past = all_equal([](const auto& h) { return h.history; });
  if (same_place && same_call && same_past) {
    return;
  }
  std::ostringstream text;
  if (same_place && same_past) {
    text << "the ranks called different collectives in place " << collective.seq
         << " of the group's sequence:";
  } else {
    text << "the ranks are out of step, an earlier collective was not the same "
            "on every rank; they are now at:";
  }
  for (size_t rank = 0; rank < headers.size(); ++rank) {
    text << (rank == 0 ? " " : ", ") << "rank " << rank << " called "
         << headers[rank].signature.describe();
    if (!same_place) {
      text << " as number " << headers[rank].seq;
    }
  }
  if (!same_place || !same_past) {
    throw std::runtime_error(text.str());
  }
  history_ -= collective.signature.hash(collective.seq);
  throw Mismatch(text.str());
}

} // namespace hvd
