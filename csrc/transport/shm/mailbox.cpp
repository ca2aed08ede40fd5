#include "transport/shm/mailbox.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace hvd::shm {

namespace {

bool is_first(const Letter& letter) {
  return letter.id == letter.message;
}

bool is_whole(const Letter& letter) {
  return letter.bytes == letter.total;
}

} // namespace

std::vector<uint32_t> Mailbox::post(const ReceivePtr& receive) {
  const auto here = std::ranges::find_if(unclaimed_, [&](const auto& one) {
    return receive->fits(one.source, one.first.key);
  });
  if (here == unclaimed_.end()) {
    posted_.push_back(receive);
    return {};
  }
  const auto message = std::move(*here);
  unclaimed_.erase(here);
  if (!message.keeper) {
    begin(receive, message.source, message.first);
    return {};
  }
  receive->assign(message.source, message.first.total);
  message.keeper->asked_for = true;
  message.keeper->leave_to(receive);
  return std::move(message.keeper->kept);
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
    return receive->fits(source, letter.key);
  });
  if (awaited == posted_.end()) {
    unclaimed_.push_back({source, letter, nullptr});
    if (!is_whole(letter)) {
      keep(unclaimed_.back()); // for the other parts to find it
    }
    return;
  }
  const auto receive = *awaited;
  posted_.erase(awaited);
  begin(receive, source, letter);
}

void Mailbox::begin(
    const ReceivePtr& receive,
    int source,
    const Letter& first) {
  receive->assign(source, first.total);
  receive->message = first.message;
  if (receive->to_read && is_whole(first) &&
      first.form == Letter::Form::Staged) {
    receive->lying = first;
    receive->done = true;
    lying_.push_back(receive);
    return;
  }
  if (first.form != Letter::Form::Inline) {
    begun_.push_back(receive);
  }
  add(receive, first);
}

void Mailbox::keep(Unclaimed& message) {
  const auto& first = message.first;
  message.keeper = std::make_shared<Receive>(
      first.key, message.source, at::empty({first.total}, at::kByte));
  message.keeper->asked_for = false;
  begin(message.keeper, message.source, first);
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

void Mailbox::claim(const ReceivePtr& receive) {
  std::erase(lying_, receive);
}

bool Mailbox::make_room() {
  const bool any = takes_room();
  for (const auto& receive : lying_) {
    receive->parts.push_back(*std::exchange(receive->lying, std::nullopt));
    receive->done = false;
    begun_.push_back(receive);
  }
  lying_.clear();
  return any;
}

bool Mailbox::keep_unclaimed() {
  bool any = false;
  for (auto& message : unclaimed_) {
    if (message.first.form == Letter::Form::Staged && !message.keeper) {
      keep(message);
      any = true;
    }
  }
  return any;
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
