#include "transport/shm/outbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hvd::shm {

namespace {

// What is copied aside is in the caches when it is read, and who sums it reads
// it where it is. Up to a segment that costs less than to read another
// process's memory: for an all_reduce of 16 MB and two ranks half the time. Not
// so where those under way to many ranks fill most of the arena, and the
// caches: on two cores eight ranks lose by it.
constexpr int64_t kAside = 256 * 1024;
constexpr int64_t kForSegments = Segment::kArenaBytes / 4 * 3;

// Up to here, the longest frame and a bit, it also frees its sender from
// waiting until it is read, but for what Lead says. Whoever sends more waits,
// and so finds out if the others have called something else.
constexpr int64_t kUnawaited = 72 * 1024;

// What has to be copied aside is so in parts, so that copying out of the arena
// overlaps with copying into it.
constexpr int64_t kPart = 256 * 1024;

// What is staged for a peer, as a multiple of what is free, beyond which it has
// to wait: one that does not read leaves a quarter of the arena to the others
// and seven leave what a part needs. (Choudhury and Hahne 1998, of switches.)
constexpr int64_t kMostOfFree = 3;

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

} // namespace

Outbox::Outbox(
    int rank,
    const std::vector<Segment>& segments,
    std::vector<bool> reads_memory,
    int64_t segments_under_way)
    : rank_(rank),
      segments_(segments),
      reads_memory_(std::move(reads_memory)),
      aside_(
          std::clamp(
              kForSegments / segments_under_way /
                  std::max<int64_t>(std::ssize(segments) - 1, 1),
              kUnawaited,
              kAside)),
      queues_(segments.size()),
      leads_(segments.size()),
      staged_(segments.size()) {}

Letter::Form Outbox::form_for(
    const Key& key,
    int64_t bytes,
    const std::vector<int>& to,
    bool is_awaited) const {
  if (bytes <= Letter::kInline && !is_awaited) {
    return Letter::Form::Inline;
  }
  const bool readable =
      std::ranges::all_of(to, [&](int peer) { return reads_memory_[peer]; });
  // What is not one of many segments is best copied once.
  const int64_t aside = key.kind == Key::Kind::User ? kUnawaited : aside_;
  return bytes > aside && readable ? Letter::Form::Direct
                                   : Letter::Form::Staged;
}

std::vector<SendPtr> Outbox::send(
    const Key& key,
    const at::Tensor& buffer,
    const std::vector<int>& to) {
  const auto total = static_cast<int64_t>(buffer.nbytes());
  const bool is_awaited = total > kUnawaited ||
      (key.kind == Key::Kind::User && leads_[to.front()].is_too_long(total));
  const auto form = form_for(key, total, to, is_awaited);
  const bool all_ready =
      has_room(account_of(to), total) && std::ranges::all_of(to, [&](int peer) {
        return queues_[peer].sends.empty();
      });
  std::vector<SendPtr> parts;
  if (form != Letter::Form::Staged || (total <= kPart && all_ready)) {
    parts.push_back(queue(key, form, buffer, to));
    parts.back()->is_awaited = is_awaited;
    return parts;
  }
  // What the arena holds must be on its way to all who read it, or it could
  // fill up with what one peer has read and another will get behind what finds
  // no room. So each peer gets a copy of its own.
  for (const int peer : to) {
    const uint32_t message = last_id_ + 1;
    for (int64_t begin = 0; begin < total; begin += kPart) {
      const auto bytes = std::min(kPart, total - begin);
      parts.push_back(
          queue(key, form, as_bytes(buffer).narrow(0, begin, bytes), {peer}));
      parts.back()->message = message;
      parts.back()->total = total;
      parts.back()->is_awaited = is_awaited;
    }
  }
  return parts;
}

SendPtr Outbox::queue(
    const Key& key,
    Letter::Form form,
    const at::Tensor& buffer,
    const std::vector<int>& to) {
  auto send = std::make_shared<Send>();
  send->key = key;
  send->buffer = buffer;
  send->account = account_of(to);
  send->unread = to;
  send->form = form;
  send->id = ++last_id_;
  send->message = send->id;
  send->bytes = static_cast<int64_t>(buffer.nbytes());
  send->total = send->bytes;
  if (form != Letter::Form::Inline) {
    unread_[send->id] = send;
  }
  for (const int peer : to) {
    queues_[peer].sends.push_back(send);
  }
  return send;
}

void Outbox::acknowledge(int peer, Letter::Form what, uint32_t id) {
  queues_[peer].acknowledgements.push_back({what, id});
}

void Outbox::acknowledged(int peer, Letter::Form what, uint32_t id) {
  const auto entry = unread_.find(id);
  Send& send = *entry->second;
  std::erase(send.readers, peer);
  if (send.staged && send.readers.empty()) {
    arena_.give_back(*std::exchange(send.staged, std::nullopt));
    staged_[send.account] -= send.bytes;
  }
  if (what == Letter::Form::Done) {
    std::erase(send.unread, peer);
  }
  if (send.unread.empty()) {
    send.buffer = at::Tensor();
    send.done = true;
    unread_.erase(entry);
  }
}

void Outbox::flush() {
  bool any_ended = false;
  for (size_t i = 0; i < queues_.size(); ++i) {
    auto& [acknowledgements, sends, is_awaited] = queues_[i];
    const auto peer = static_cast<int>(i);
    bool written = false;
    while (!acknowledgements.empty() && write(peer, acknowledgements.front())) {
      acknowledgements.pop_front();
      written = true;
    }
    if (!acknowledgements.empty() &&
        segments_[peer].head().state == SegmentHead::State::Left) {
      acknowledgements.clear(); // it reads none any more
    }
    while (!sends.empty() && write(peer, *sends.front())) {
      any_ended |= is_awaited && sends.front()->done;
      sends.pop_front();
      written = true;
    }
    is_awaited = !sends.empty();
    if (written) {
      segments_[peer].head().bell.ring();
    }
  }
  if (any_ended) {
    segments_[rank_].head().bell.ring();
  }
}

bool Outbox::is_waiting() const {
  return std::ranges::any_of(queues_, [](const auto& queue) {
    return !queue.acknowledgements.empty() || !queue.sends.empty();
  });
}

bool Outbox::is_busy() const {
  return is_waiting() || std::ranges::any_of(unread_, [](const auto& entry) {
           return entry.second->form == Letter::Form::Direct;
         });
}

bool Outbox::has_room(int account, int64_t bytes) const {
  const auto staged = staged_[account];
  return staged == 0 ||
      staged + bytes <= kMostOfFree * (arena_.free_bytes() - bytes);
}

bool Outbox::write(int peer, const Acknowledgement& acknowledgement) {
  Ring& ring = segments_[peer].ring_from(rank_);
  Letter* const letter = ring.vacant();
  if (letter == nullptr) {
    return false;
  }
  letter->form = acknowledgement.what;
  letter->id = acknowledgement.id;
  ring.publish();
  return true;
}

bool Outbox::write(int peer, Send& send) {
  Ring& ring = segments_[peer].ring_from(rank_);
  Letter* const letter = ring.vacant();
  const bool to_stage = send.form == Letter::Form::Staged && !send.staged;
  if (letter == nullptr || (to_stage && !stage(send))) {
    return false;
  }
  letter->key = send.key;
  letter->form = send.form;
  letter->id = send.id;
  letter->message = send.message;
  letter->bytes = send.bytes;
  letter->total = send.total;
  if (send.form == Letter::Form::Inline) {
    if (send.bytes > 0) {
      const auto bytes = static_cast<size_t>(send.bytes);
      std::memcpy(letter->content.data(), send.buffer.const_data_ptr(), bytes);
    }
    std::erase(send.unread, peer);
    send.done = send.unread.empty();
  } else {
    letter->place = send.staged
        ? static_cast<uint64_t>(*send.staged)
        : reinterpret_cast<uint64_t>(send.buffer.const_data_ptr());
  }
  ring.publish();
  return true;
}

bool Outbox::stage(Send& send) {
  if (has_room(send.account, send.bytes)) {
    send.staged = arena_.take(send.bytes);
  }
  if (!send.staged) {
    return false;
  }
  staged_[send.account] += send.bytes;
  copy_(
      segments_[rank_].arena() + *send.staged,
      send.buffer.const_data_ptr(),
      send.bytes);
  send.buffer = at::Tensor();
  send.readers = send.unread;
  send.done = !send.is_awaited;
  return true;
}

} // namespace hvd::shm
