#include "transport/tcp/mailbox.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace hvd::tcp {

namespace {

template <typename Queue>
auto find(Queue& posted, const Key& key) {
  return std::ranges::find_if(
      posted, [&](const auto& receive) { return receive->key == key; });
}

} // namespace

Mailbox::Mailbox(int size) : posted_(size), asked_(size) {}

std::optional<int> Mailbox::post(const ReceivePtr& receive) {
  receive->place = posts_++;
  // Both sides of an exchange know how long it is: it needs no offer.
  if (receive->key.kind == Key::Kind::Exchange &&
      is_long(receive->key, static_cast<int64_t>(receive->buffer.nbytes()))) {
    ask(receive->peer, receive);
    return receive->peer;
  }
  const auto here = std::ranges::find_if(unclaimed_, [&](const auto& one) {
    return receive->fits(one.source, one.header.key);
  });
  if (here == unclaimed_.end()) {
    const bool any = receive->peer == Receive::kAny;
    (any ? posted_for_any_ : posted_[receive->peer]).push_back(receive);
    return {};
  }
  const auto [source, header, kept] = *here;
  unclaimed_.erase(here);
  receive->assign(source, header.bytes);
  if (!kept) {
    ask(source, receive);
    return source;
  }
  kept->leave_to(receive);
  return {};
}

void Mailbox::withdraw(const MatchedReceive& receive) {
  const bool any = receive.peer == Receive::kAny;
  std::erase_if(
      any ? posted_for_any_ : posted_[receive.peer],
      [&](const auto& posted) { return posted.get() == &receive; });
}

ReceivePtr Mailbox::offer(int source, const Header& header) {
  auto receive = take_posted(source, header.key);
  if (!receive) {
    unclaimed_.push_back({source, header, nullptr});
    return nullptr;
  }
  receive->assign(source, header.bytes);
  ask(source, receive);
  return receive;
}

ReceivePtr Mailbox::begin(int source, const Header& header) {
  const bool was_asked_for = header.number != 0;
  auto receive = was_asked_for ? take_asked(source, header)
                               : take_posted(source, header.key);
  if (!receive) {
    if (was_asked_for) {
      return nullptr;
    }
    receive = std::make_shared<Receive>(
        header.key, source, at::empty({header.bytes}, at::kByte));
    unclaimed_.push_back({source, header, receive});
  }
  receive->assign(source, header.bytes);
  receive->add(0);
  return receive;
}

void Mailbox::ask(int source, const ReceivePtr& receive) {
  asks_ = std::max(asks_ + 1, 1U); // 0, to which it comes back, has a meaning
  receive->number = asks_;
  asked_[source].push_back(receive);
}

ReceivePtr Mailbox::take_posted(int source, const Key& key) {
  auto& own = posted_[source];
  const auto for_it = find(own, key);
  const auto for_any = find(posted_for_any_, key);
  const bool is_for_any = for_any != posted_for_any_.end() &&
      (for_it == own.end() || (*for_any)->place < (*for_it)->place);
  return is_for_any ? take(posted_for_any_, for_any) : take(own, for_it);
}

ReceivePtr Mailbox::take_asked(int source, const Header& header) {
  auto& asked = asked_[source];
  return take(asked, std::ranges::find_if(asked, [&](const auto& receive) {
                return receive->number == header.number &&
                    receive->key == header.key;
              }));
}

ReceivePtr Mailbox::take(Posted& posted, Posted::iterator found) {
  if (found == posted.end()) {
    return nullptr;
  }
  auto receive = std::move(*found);
  posted.erase(found);
  return receive;
}

bool Mailbox::awaits_long_or_users() const {
  return !posted_for_any_.empty() ||
      std::ranges::any_of(
          asked_, [](const Posted& asked) { return !asked.empty(); }) ||
      has_posted(Key::Kind::User);
}

bool Mailbox::awaits_short() const {
  return has_posted(Key::Kind::Exchange);
}

bool Mailbox::has_posted(Key::Kind kind) const {
  return std::ranges::any_of(posted_, [&](const Posted& posted) {
    return std::ranges::any_of(
        posted, [&](const auto& receive) { return receive->key.kind == kind; });
  });
}

} // namespace hvd::tcp
