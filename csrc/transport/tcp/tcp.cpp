#include "transport/tcp/tcp.h"

#include "transport/tcp/request.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hvd {

using tcp::Header;
using tcp::Receive;
using tcp::ReceivePtr;
using tcp::Send;
using tcp::SendPtr;

namespace {

// Longer than an answer takes in a rack; shorter than what sleeping and being
// woken cost two ranks.
constexpr std::chrono::microseconds kSpin{50};

// How long that another rank has given up may go unnoticed.
constexpr std::chrono::milliseconds kUnseen{10};

// How long leaving may wait for what is still on its way.
constexpr std::chrono::seconds kLinger{1};

/// `more`: than what there is to read. Events bear `rail`.
void watch(int epoll, int operation, int socket, void* rail, uint32_t more) {
  epoll_event event{EPOLLIN | more, {.ptr = rail}};
  if (epoll_ctl(epoll, operation, socket, &event) != 0 &&
      operation == EPOLL_CTL_ADD) {
    throw TransportError(
        std::string("tcp: cannot watch a socket: ") + std::strerror(errno));
  }
}

int make_epoll() {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) {
    throw TransportError(
        std::string("tcp: epoll_create1: ") + std::strerror(errno));
  }
  return epoll;
}

} // namespace

TcpTransport::TcpTransport(
    int rank,
    const std::vector<std::vector<int>>& sockets,
    double ranks_per_core,
    std::chrono::milliseconds patience)
    : MatchingTransport(rank, static_cast<int>(sockets.size())),
      peers_(take_over(sockets)),
      epoll_(make_epoll()),
      spin_(ranks_per_core <= 1 ? kSpin : kSpin.zero()),
      patience_(patience),
      mailbox_(size()) {
  for (const auto& peer : peers_) {
    for (const auto& rail : peer.rails) {
      watch(epoll_, EPOLL_CTL_ADD, rail->connection.socket(), rail.get(), 0);
    }
  }
}

std::vector<TcpTransport::Peer> TcpTransport::take_over(
    const std::vector<std::vector<int>>& sockets) {
  std::vector<Peer> peers(sockets.size());
  for (size_t peer = 0; peer < sockets.size(); ++peer) {
    for (const int socket : sockets[peer]) {
      peers[peer].rails.push_back(
          std::make_unique<Rail>(static_cast<int>(peer), socket));
    }
  }
  return peers;
}

TcpTransport::~TcpTransport() {
  const auto latest = Clock::now() + kLinger;
  Lock lock(mutex_);
  const auto is_full = [](const auto& one) { return one.is_full(); };
  while (!aborted_ && any_open(is_full) && Clock::now() < latest) {
    turn(lock, spin_.zero(), latest);
  }
  closing_ = true;
  lock.unlock();
  wanted_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
  // A peer's message to a socket that is closed would take back what is on its
  // way to that peer.
  const auto is_on_its_way = [](const auto& one) {
    return one.unconfirmed() > 0;
  };
  while (!aborted_ && any_open(is_on_its_way) && Clock::now() < latest) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

RequestPtr TcpTransport::start(
    const std::vector<Transfer>& sends,
    const std::vector<Transfer>& receives,
    KeyOf key_of) {
  auto request = std::make_unique<TcpRequest>(*this);
  Lock lock(mutex_);
  // What a rank had sent before it gave up would be taken for success.
  if (Clock::now() - last_look_ > kUnseen) {
    look();
  }
  check_open();
  // Receives first: to ask for a message is then not behind what is sent here.
  for (const auto& [peer, buffer] : receives) {
    request->receives.push_back(
        std::make_shared<Receive>(key_of(buffer), peer, buffer));
    post(request->receives.back());
  }
  for (const auto& [peer, buffer] : sends) {
    const Header header{
        Header::Kind::Bytes,
        0,
        key_of(buffer),
        static_cast<int64_t>(buffer.nbytes())};
    request->sends.push_back(std::make_shared<Send>(peer, header, buffer));
    dispatch(request->sends.back());
    sent_bytes_ += buffer.nbytes();
  }
  if (request->is_left_alone()) {
    move_in_background();
  }
  return request;
}

void TcpTransport::post(const ReceivePtr& receive) {
  if (const auto source = mailbox_.post(receive)) {
    ask(*source, receive);
  }
}

void TcpTransport::dispatch(const SendPtr& send) {
  auto& peer = peers_[send->peer];
  const auto& key = send->header.key;
  const bool is_users = key.kind == Key::Kind::User;
  if (!tcp::is_long(key, send->header.bytes) &&
      !(is_users && peer.lead.is_too_long(send->header.bytes))) {
    queue(*peer.rails.front(), send);
    return;
  }
  const auto asked = std::ranges::find(peer.asked, key, &Header::key);
  if (asked != peer.asked.end()) {
    answer(send, *asked);
    peer.asked.erase(asked);
    return;
  }
  peer.held.push_back(send);
  if (is_users) {
    Header offer = send->header;
    offer.kind = Header::Kind::Offer;
    say(send->peer, offer);
  }
}

/// A message that was asked for leaves.
void TcpTransport::answer(const SendPtr& send, const Header& request) {
  send->header.number = request.number;
  queue(emptiest_rail(peers_[send->peer]), send);
}

/// Of equals in turn: messages to different peers share a network.
TcpTransport::Rail& TcpTransport::emptiest_rail(const Peer& peer) {
  const size_t count = peer.rails.size();
  const size_t first = answered_++ % count;
  Rail* emptiest = peer.rails[first].get();
  for (size_t next = first + 1; next < first + count; ++next) {
    Rail* const rail = peer.rails[next % count].get();
    if (rail->connection.backlog() < emptiest->connection.backlog()) {
      emptiest = rail;
    }
  }
  return *emptiest;
}

void TcpTransport::ask(int peer, const ReceivePtr& receive) {
  say(peer, {Header::Kind::Request, receive->number, receive->key, 0});
}

/// What no bytes follow.
void TcpTransport::say(int peer, const Header& header) {
  queue(*peers_[peer].rails.front(), std::make_shared<Send>(peer, header));
}

void TcpTransport::queue(Rail& rail, const SendPtr& send) {
  rail.connection.queue(send);
  write(rail);
}

void TcpTransport::write(Rail& rail) {
  bool& is_watched = rail.is_watched_for_room;
  rail.connection.write();
  // Who sleeps on the sockets may wait for what has just been written. So it
  // hears of the room, and only it stops watching.
  const bool is_awaited = is_watched && driving_;
  if (rail.connection.is_full() != is_watched && !is_awaited) {
    is_watched = !is_watched;
    const auto room = is_watched ? uint32_t{EPOLLOUT} : 0;
    watch(epoll_, EPOLL_CTL_MOD, rail.connection.socket(), &rail, room);
  }
}

void TcpTransport::read(Rail& rail) {
  rail.connection.read(
      buffer_, [&](const Header& header) { return take(rail.peer, header); });
  if (rail.connection.is_open()) {
    return;
  }
  // A thread that sleeps on the sockets would not hear of the end of one that
  // is taken off them meanwhile. So it does that itself, woken by the end.
  if (!driving_) {
    epoll_ctl(epoll_, EPOLL_CTL_DEL, rail.connection.socket(), nullptr);
  }
  auto& peer = peers_[rail.peer];
  bool any_left = false;
  for (const auto& other : peer.rails) {
    // Where it is not the peer that has ended, but the way to it.
    if (other->connection.is_open()) {
      other->connection.finish();
      any_left = true;
    }
  }
  // Where this rank has aborted it is what has closed it.
  if (!any_left && !aborted_) {
    lose(rail.peer);
  }
}

void TcpTransport::lose(int peer) {
  peers_[peer].is_gone = true;
  mailbox_.forget(peer);
}

ReceivePtr TcpTransport::take(int source, const Header& header) {
  auto& peer = peers_[source];
  switch (header.kind) {
    case Header::Kind::Bytes:
      if (auto receive = mailbox_.begin(source, header)) {
        return receive;
      }
      break;
    case Header::Kind::Offer:
      if (const auto receive = mailbox_.offer(source, header)) {
        ask(source, receive);
      }
      return nullptr;
    case Header::Kind::Request: {
      const auto held = std::ranges::find_if(
          peer.held,
          [&](const SendPtr& send) { return send->header.key == header.key; });
      if (held == peer.held.end()) {
        peer.asked.push_back(header);
      } else {
        answer(*held, header);
        peer.held.erase(held);
      }
      return nullptr;
    }
    case Header::Kind::GaveUp:
      peer.farewell = std::max(peer.farewell, Farewell::GaveUp);
      if (header.number > 0 && header.number <= peers_.size()) {
        peers_[header.number - 1].farewell = Farewell::TimedOut;
      }
      if (header.bytes >= 0 && header.bytes < size()) {
        peers_[header.bytes].is_missed = true;
      }
      return nullptr;
  }
  shut(peer); // that is no rank of ours
  return nullptr;
}

void TcpTransport::shut(Peer& peer) {
  for (const auto& rail : peer.rails) {
    rail->connection.shut();
  }
}

int64_t TcpTransport::segment_bytes() const {
  const auto& rails = peers_[others().front()].rails; // as many to each
  return Transport::segment_bytes() / static_cast<int64_t>(rails.size());
}

bool TcpTransport::is_gone(int peer) const {
  Lock lock(mutex_);
  return has_left(peer);
}

void TcpTransport::leave() noexcept {
  const Lock lock(mutex_);
  if (is_busy()) {
    return;
  }
  for (auto& peer : peers_) {
    for (const auto& rail : peer.rails) {
      rail->connection.finish();
    }
  }
}

void TcpTransport::abort() noexcept {
  {
    Lock lock(mutex_);
    if (aborted_) {
      return;
    }
    hear_out();
    aborted_ = true;
    if (timed_out_) {
      peers_[rank()].farewell = Farewell::TimedOut;
    }
    Header farewell{Header::Kind::GaveUp, 0, {}, -1};
    for (int peer = 0; peer < size(); ++peer) {
      peers_[peer].is_gone = has_left(peer);
      if (peers_[peer].is_gone) {
        farewell.bytes = peer;
      }
      if (peers_[peer].farewell == Farewell::TimedOut) {
        farewell.number = static_cast<uint32_t>(peer) + 1;
      }
    }
    for (const int peer : others()) {
      say(peer, farewell);
      shut(peers_[peer]);
    }
  }
  wanted_.notify_all();
  driven_.notify_all();
}

} // namespace hvd
