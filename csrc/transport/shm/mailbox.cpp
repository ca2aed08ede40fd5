#include "transport/shm/mailbox.h"

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

} // namespace

void Mailbox::post(const ReceivePtr& receive) {
  const auto here =
      std::find_if(unclaimed_.begin(), unclaimed_.end(), [&](const auto& one) {
        return fits(*receive, one.source, one.parts.front());
      });
  if (here == unclaimed_.end()) {
    posted_.push_back(receive);
    return;
  }
  begin(receive, here->source, here->parts.front());
  for (const auto& part : here->parts) {
    add(receive, part);
  }
  unclaimed_.erase(here);
}

void Mailbox::deliver(int source, const Letter& letter) {
  if (is_first(letter)) {
    const auto awaited =
        std::find_if(posted_.begin(), posted_.end(), [&](const auto& receive) {
          return fits(*receive, source, letter);
        });
    if (awaited == posted_.end()) {
      unclaimed_.push_back({source, {letter}});
    } else {
      const auto receive = *awaited;
      posted_.erase(awaited);
      begin(receive, source, letter);
      add(receive, letter);
    }
    return;
  }
  const auto receive =
      std::find_if(begun_.begin(), begun_.end(), [&](const auto& one) {
        return one->source == source && one->message == letter.message;
      });
  if (receive != begun_.end()) {
    add(*receive, letter);
    return;
  }
  const auto unclaimed =
      std::find_if(unclaimed_.begin(), unclaimed_.end(), [&](const auto& one) {
        return one.source == source &&
            one.parts.front().message == letter.message;
      });
  unclaimed->parts.push_back(letter);
}

void Mailbox::begin(
    const ReceivePtr& receive,
    int source,
    const Letter& first) {
  receive->source = source;
  receive->message = first.message;
  receive->missing = first.total;
  const auto room = static_cast<int64_t>(receive->buffer.nbytes());
  if (first.total > room) {
    receive->error = "a message of " + std::to_string(first.total) +
        " bytes for a buffer of " + std::to_string(room);
  }
  if (first.form != Letter::Form::Inline) {
    begun_.push_back(receive);
  }
}

void Mailbox::add(const ReceivePtr& receive, const Letter& letter) {
  if (letter.form != Letter::Form::Inline) {
    receive->parts.push_back(letter);
    return;
  }
  if (receive->error.empty() && letter.bytes > 0) {
    std::memcpy(
        receive->buffer.mutable_data_ptr(),
        letter.content.data(),
        static_cast<size_t>(letter.bytes));
  }
  receive->done = true;
}

ReceivePtr Mailbox::next_readable() {
  begun_.erase(
      std::remove_if(
          begun_.begin(),
          begun_.end(),
          [](const auto& receive) { return receive->done; }),
      begun_.end());
  const auto readable =
      std::find_if(begun_.begin(), begun_.end(), [](const auto& receive) {
        return is_readable(*receive);
      });
  return readable == begun_.end() ? nullptr : *readable;
}

} // namespace hvd::shm
