#pragma once

#include "common/rank_names.h"
#include "transport/key.h"
#include "transport/transport.h"

#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <vector>

// What transports have in common that bring messages and receives together
// themselves.

namespace hvd {

/// A receive, from its call to its end; or a message that is kept until there
/// is one for it.
struct MatchedReceive {
  static constexpr int kAny = -1;

  MatchedReceive(Key key, int peer, at::Tensor buffer)
      : key(key), peer(peer), buffer(std::move(buffer)) {}

  const Key key;
  const int peer; ///< or kAny
  const at::Tensor buffer;
  int source = kAny; ///< once its message is known
  int64_t total = 0; ///< bytes of the message
  int64_t read = 0; ///< of them
  bool done = false;
  std::string error; ///< empty if all is well

  /// Whether a message of that rank may be for this.
  bool fits(int source, const Key& its_key) const {
    return (peer == source || peer == kAny) && key == its_key;
  }

  /// A message of so many bytes is for this.
  void assign(int source, int64_t bytes);

  /// More of it has been read.
  void add(int64_t bytes);

  /// What is kept here is for another, once it is done.
  void leave_to(std::shared_ptr<MatchedReceive> heir);

  /// Where the next bytes go; null if they are of no use.
  std::byte* next() const {
    return error.empty()
        ? static_cast<std::byte*>(buffer.mutable_data_ptr()) + read
        : nullptr;
  }

 private:
  void finish();
  void inherit(const MatchedReceive& kept);

  std::shared_ptr<MatchedReceive> heir_;
};

/// Short messages of the user's to a peer leave at once, and it keeps them for
/// their receives. So now and then the send of one ends only when that has been
/// received, or who only sends would fill the memory of who receives late.
class Lead {
 public:
  /// Whether the next message is such a one.
  bool is_too_long(int64_t bytes);

 private:
  int64_t bytes_ = 0; ///< of messages since the last one
};

/// What a verb has posted. `Send` says whether it is `done`, and by
/// `needs(peer)` whether that takes something of the peer.
template <typename Receive, typename Send>
class MatchedRequest : public Request {
 public:
  int source() const override {
    return receives.front()->source;
  }

  bool is_done() const {
    const auto done = [](const auto& part) { return part->done; };
    return std::ranges::all_of(receives, done) &&
        std::ranges::all_of(sends, done);
  }

  /// Whether it waits for what the peer has yet to do.
  bool needs(int peer) const {
    const auto comes_from = [&](const auto& receive) {
      return !receive->done &&
          (receive->peer == peer || receive->source == peer);
    };
    const auto goes_to = [&](const auto& send) {
      return !send->done && send->needs(peer);
    };
    return std::ranges::any_of(receives, comes_from) ||
        std::ranges::any_of(sends, goes_to);
  }

  bool needs_any() const {
    return std::ranges::any_of(receives, [](const auto& one) {
      return one->source == Receive::kAny && one->peer == Receive::kAny;
    });
  }

  std::vector<std::shared_ptr<Receive>> receives;
  std::vector<std::shared_ptr<Send>> sends;
  bool given_up = false;
};

/// Gives each message of a verb its key, and each failure its words.
class MatchingTransport : public Transport {
 public:
  using Transport::Transport;

  RequestPtr exchange(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      const Lane& lane) final;
  RequestPtr exchange_frames(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives) final;
  RequestPtr send(const at::Tensor& buffer, int peer, int tag) final;
  RequestPtr recv(const at::Tensor& buffer, int peer, int tag) final;
  RequestPtr recv_any(const at::Tensor& buffer, int tag) final;
  int max_tag() const final {
    return std::numeric_limits<int>::max();
  }
  void note_timeout() noexcept final {
    timed_out_ = true;
  }

 protected:
  using KeyOf = c10::function_ref<Key(const at::Tensor&)>;

  /// What a rank says when it does not go on.
  enum class Farewell { None, GaveUp, TimedOut };

  virtual RequestPtr start(
      const std::vector<Transfer>& sends,
      const std::vector<Transfer>& receives,
      KeyOf key_of) = 0;

  /// It gets no message, unless one has come.
  virtual void withdraw(const MatchedReceive& receive) = 0;

  virtual Farewell farewell_of(int peer) const = 0;
  /// Without a farewell.
  virtual bool has_left(int peer) const = 0;
  /// As the user knows it, in messages.
  virtual int number_of(int peer) const {
    return peer;
  }

  /// Throws TransportError if some rank has given up, and all with it.
  void check_open() const;

  /// The same; and RankLeft, with its receives withdrawn, if the request was
  /// given up.
  template <typename Posted>
  void check_open(const Posted& request) {
    check_open();
    if (request.given_up) {
      fail_alone(request, "this rank has left");
    }
  }

  /// Why others may have given up, to end a sentence with.
  std::string departed() const;

  /// Throws RankLeft, with its receives withdrawn, if the request needs a rank
  /// of which nothing else can come.
  template <typename Posted, typename IsOver>
  void check_living(const Posted& request, IsOver is_over) {
    std::vector<int> over;
    for (const int peer : others()) {
      if (is_over(peer)) {
        over.push_back(peer);
      }
    }
    // All of them: one may have left only because another had died.
    if (std::ranges::any_of(
            over, [&](int peer) { return request.needs(peer); })) {
      fail_alone(request, have_left(over));
    }
    if (std::ssize(over) == size() - 1 && request.needs_any()) {
      fail_alone(request, "all other ranks have left or died");
    }
  }

  /// Throws TransportTimeout.
  template <typename Posted>
  [[noreturn]] void time_out(const Posted& request) {
    note_timeout();
    std::vector<int> numbers;
    for (const int peer : others()) {
      if (request.needs(peer) || request.needs_any()) {
        numbers.push_back(number_of(peer));
      }
    }
    throw TransportTimeout(
        std::string(name()) + ": Timed out waiting for " + name_ranks(numbers));
  }

  /// Throws TransportError if one of the receives has failed.
  template <typename Posted>
  void check_received(const Posted& request) const {
    for (const auto& receive : request.receives) {
      if (!receive->error.empty()) {
        fail(
            "receive from " + name_of(receive->source) + ": " + receive->error);
      }
    }
  }

  // Guarded as the rest of a transport's state.
  bool aborted_ = false;
  bool closing_ = false;
  std::atomic<bool> timed_out_{false}; ///< not guarded

 private:
  template <typename Error = TransportError>
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(std::string(name()) + ": " + what);
  }
  template <typename Posted>
  [[noreturn]] void fail_alone(const Posted& request, const std::string& what) {
    for (const auto& receive : request.receives) {
      withdraw(*receive);
    }
    fail<RankLeft>(what);
  }
  /// "ranks 1,3 have left or died"
  std::string have_left(const std::vector<int>& peers) const;
  std::string name_of(int peer) const {
    return name_ranks({number_of(peer)});
  }
};

} // namespace hvd
