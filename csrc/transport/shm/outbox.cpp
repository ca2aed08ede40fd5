#include "transport/shm/outbox.h"

#include <algorithm>
#include <cstring>

namespace hvd::shm {

namespace {

// A message that is copied aside frees its sender from waiting until it is
// read. Up to here, the longest frame and a bit, that is worth the copy.
constexpr int64_t kEager = 72 * 1024;

// What has to be copied aside is so in parts, so that copying out of the arena
// overlaps with copying into it.
constexpr int64_t kPart = 1024 * 1024;

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

} // namespace

Outbox::Outbox(
    int rank,
    const std::vector<Segment>& segments,
    std::vector<bool> reads_memory)
    : rank_(rank),
      segments_(segments),
      reads_memory_(std::move(reads_memory)),
      queues_(segments.size()) {}

Letter::Form Outbox::form_for(int64_t bytes, const std::vector<int>& to) const {
  if (bytes <= Letter::kInline) {
    return Letter::Form::Inline;
  }
  const bool readable = std::all_of(
      to.begin(), to.end(), [&](int peer) { return reads_memory_[peer]; });
  return bytes > kEager && readable ? Letter::Form::Direct
                                    : Letter::Form::Staged;
}

std::vector<SendPtr> Outbox::send(
    const Key& key,
    const at::Tensor& buffer,
    const std::vector<int>& to) {
  const auto total = static_cast<int64_t>(buffer.nbytes());
  const auto form = form_for(total, to);
  const bool whole = form != Letter::Form::Staged || total <= kPart;
  const uint32_t message = last_id_ + 1;
  std::vector<SendPtr> parts;
  for (int64_t begin = 0; begin == 0 || begin < total; begin += kPart) {
    auto part = std::make_shared<Send>();
    part->key = key;
    part->bytes = whole ? total : std::min(kPart, total - begin);
    part->buffer =
        whole ? buffer : as_bytes(buffer).narrow(0, begin, part->bytes);
    part->unread = to;
    part->form = form;
    part->id = ++last_id_;
    part->message = message;
    part->total = total;
    if (form != Letter::Form::Inline) {
      unread_[part->id] = part;
    }
    for (const int peer : to) {
      queues_[peer].push_back({part});
    }
    parts.push_back(std::move(part));
    if (whole) {
      break;
    }
  }
  return parts;
}

void Outbox::acknowledge(int peer, uint32_t id) {
  queues_[peer].push_back({nullptr, id});
}

void Outbox::acknowledged(int peer, uint32_t id) {
  const auto entry = unread_.find(id);
  Send& send = *entry->second;
  std::erase(send.unread, peer);
  if (!send.unread.empty()) {
    return;
  }
  if (send.staged) {
    arena_.give_back(*send.staged);
  }
  send.buffer = at::Tensor();
  send.done = true;
  unread_.erase(entry);
}

void Outbox::flush() {
  for (size_t peer = 0; peer < queues_.size(); ++peer) {
    auto& queue = queues_[peer];
    bool written = false;
    while (!queue.empty() && write(static_cast<int>(peer), queue.front())) {
      queue.pop_front();
      written = true;
    }
    if (written) {
      segments_[peer].head().bell.ring();
    }
  }
}

bool Outbox::is_waiting() const {
  return std::any_of(queues_.begin(), queues_.end(), [](const auto& queue) {
    return !queue.empty();
  });
}

bool Outbox::is_read_from() const {
  return std::any_of(unread_.begin(), unread_.end(), [](const auto& entry) {
    return entry.second->form == Letter::Form::Direct;
  });
}

bool Outbox::write(int peer, const Item& item) {
  Ring& ring = segments_[peer].ring_from(rank_);
  Letter* const letter = ring.vacant();
  if (letter == nullptr) {
    return false;
  }
  if (!item.send) {
    letter->form = Letter::Form::Done;
    letter->id = item.acknowledged;
    ring.publish();
    return true;
  }
  Send& send = *item.send;
  if (send.form == Letter::Form::Staged && !send.staged && !stage(send)) {
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
  send.staged = arena_.take(send.bytes);
  if (!send.staged) {
    return false;
  }
  std::memcpy(
      segments_[rank_].arena() + *send.staged,
      send.buffer.const_data_ptr(),
      static_cast<size_t>(send.bytes));
  send.buffer = at::Tensor();
  send.done = true;
  return true;
}

} // namespace hvd::shm
