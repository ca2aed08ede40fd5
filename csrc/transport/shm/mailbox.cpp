#include "transport/shm/mailbox.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

namespace hvd::shm {

namespace {

bool fits(const Receive& receive, int source, const Letter& letter) {
  return (receive.peer == source || receive.peer == Receive::kAny) &&
      receive.key == letter.key;
}

bool is_first(const Letter& letter) {
  return letter.id == letter.message;
}

void begin(Receive& receive, int source, const Letter& first) {
  receive.assign(source, first.total);
  receive.message = first.message;
}

} // namespace

void Mailbox::post(const ReceivePtr& receive) {
  const auto here = std::ranges::find_if(unclaimed_, [&](const auto& one) {
    return fits(*receive, one.source, one.first);
  });
  if (here == unclaimed_.end()) {
    posted_.push_back(receive);
    return;
  }
  begin(*receive, here->source, here->first);
  if (here->kept) {
    here->kept->leave_to(receive);
  } else {
    begun_.push_back(receive);
    add(receive, here->first);
  }
  unclaimed_.erase(here);
}

void Mailbox::deliver(int source, const Letter& letter) {
  if (!is_first(letter)) {
    const auto receive = std::ranges::find_if(begun_, [&](const auto& one) {
      return one->source == source && one->message == letter.message;
    });
    add(*receive, letter);
    return;
  }
  const auto awaited = std::ranges::find_if(posted_, [&](const auto& receive) {
    return fits(*receive, source, letter);
  });
  if (awaited == posted_.end()) {
    unclaimed_.push_back(keep(source, letter));
    return;
  }
  const auto receive = *awaited;
  posted_.erase(awaited);
  begin(*receive, source, letter);
  if (letter.form != Letter::Form::Inline) {
    begun_.push_back(receive);
  }
  add(receive, letter);
}

Mailbox::Unclaimed Mailbox::keep(int source, const Letter& first) {
  if (first.form != Letter::Form::Staged) {
    return {source, first, nullptr};
  }
  const auto kept = std::make_shared<Receive>(
      first.key, source, at::empty({first.total}, at::kByte));
  begin(*kept, source, first);
  begun_.push_back(kept);
  add(kept, first);
  return {source, first, kept};
}

void Mailbox::add(const ReceivePtr& receive, const Letter& letter) {
  if (letter.form != Letter::Form::Inline) {
    receive->parts.push_back(letter);
    return;
  }
  if (receive->error.empty() && letter.bytes > 0) {
    std::memcpy(
        receive->next(),
        letter.content.data(),
        static_cast<size_t>(letter.bytes));
  }
  receive->add(letter.bytes);
}

bool Mailbox::awaits_users_message() const {
  const auto awaits = [](const auto& receive) {
    return receive->key.kind == Key::Kind::User && !receive->done;
  };
  return std::ranges::any_of(posted_, awaits) ||
      std::ranges::any_of(begun_, awaits);
}

ReceivePtr Mailbox::next_readable() {
  begun_.erase(
      std::remove_if(
          begun_.begin(),
          begun_.end(),
          [](const auto& receive) { return receive->done; }),
      begun_.end());
  const auto readable = std::ranges::find_if(
      begun_, [](const auto& receive) { return is_readable(*receive); });
  return readable == begun_.end() ? nullptr : *readable;
}

} // namespace hvd::shm
