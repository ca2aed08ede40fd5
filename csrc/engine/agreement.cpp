#include "engine/agreement.h"

#include "common/rank_names.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace hvd {

namespace {

uint64_t hash(const Collective& collective) {
  return collective.signature.hash(collective.seq);
}

uint32_t fold(uint64_t hash) {
  return static_cast<uint32_t>(hash ^ hash >> 32);
}

FrameHeader read_header(const std::byte* frame) {
  FrameHeader header;
  std::memcpy(&header, frame, sizeof(header));
  return header;
}

bool is_single(const FrameHeader& header) {
  return header.agreed == fold(header.signature.hash(header.seq));
}

template <typename Field>
bool all_equal(
    const std::vector<FrameHeader>& headers,
    Field FrameHeader::* field) {
  return std::all_of(headers.begin(), headers.end(), [&](const auto& header) {
    return header.*field == headers[0].*field;
  });
}

uint64_t least_tail(const std::vector<FrameHeader>& headers) {
  return std::min_element(
             headers.begin(),
             headers.end(),
             [](const auto& a, const auto& b) { return a.tail < b.tail; })
      ->tail;
}

/// What each rank called, and as which number if those differ.
std::string describe_calls(const std::vector<FrameHeader>& headers) {
  const bool same_place = all_equal(headers, &FrameHeader::seq);
  std::vector<std::string> calls;
  calls.reserve(headers.size());
  for (const auto& header : headers) {
    calls.push_back(" called " + header.signature.describe());
    if (!same_place) {
      calls.back() += " as number " + std::to_string(header.seq);
    }
  }
  return by_rank(calls, ", ");
}

} // namespace

uint64_t Agreement::enlist(const Collective& collective) {
  const uint64_t before = history_;
  history_ += hash(collective);
  return before;
}

FrameHeader Agreement::header(const Batch& batch, uint64_t tail) const {
  const auto& first = batch.items[0];
  FrameHeader header;
  header.seq = first.collective->seq;
  header.tail = tail;
  header.history = first.history - taken_out_;
  uint64_t sum = 0;
  for (size_t member = 0; member < batch.items.size(); ++member) {
    sum += hash(*batch.items[member].collective);
    if (member + 1 == batch.plan.agreed) {
      header.agreed = fold(sum);
    }
  }
  header.batch = fold(sum);
  header.signature = first.collective->signature;
  return header;
}

size_t Agreement::check(
    const Batch& batch,
    const std::vector<const std::byte*>& frames) {
  std::vector<FrameHeader> headers;
  headers.reserve(frames.size());
  for (const std::byte* frame : frames) {
    headers.push_back(read_header(frame));
  }
  if (!all_equal(headers, &FrameHeader::seq) ||
      !all_equal(headers, &FrameHeader::history)) {
    throw std::runtime_error(
        "the ranks are out of step, an earlier collective was not the same on "
        "every rank; they are now at: " +
        describe_calls(headers));
  }
  agreed_ = least_tail(headers);
  in_step_ = all_equal(headers, &FrameHeader::tail);
  if (in_step_ && all_equal(headers, &FrameHeader::batch)) {
    return batch.items.size();
  }
  if (all_equal(headers, &FrameHeader::agreed)) {
    return batch.plan.agreed;
  }
  if (!std::all_of(headers.begin(), headers.end(), is_single)) {
    agreed_ = headers[0].seq + 1;
    in_step_ = false;
    return 0;
  }
  const auto& first = *batch.items[0].collective;
  taken_out_ += hash(first);
  throw Mismatch(
      "the ranks called different collectives in place " +
      std::to_string(first.seq) +
      " of the group's sequence: " + describe_calls(headers));
}

} // namespace hvd
