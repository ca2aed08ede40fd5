#include "engine/store_connection.h"

#include "common/clock.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

namespace hvd {

namespace {

constexpr std::chrono::seconds kTimeout{3};
constexpr std::chrono::milliseconds kLookForServer{500};

// How long a process that is dying may go on to accept connections.
constexpr std::chrono::milliseconds kDying{50};

/// Whether a connection is refused, as it is where nobody listens any more, or
/// closed at once, as by a server that dies just now.
bool is_refused(const addrinfo& address) {
  const int fd =
      socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return errno == EAFNOSUPPORT;
  }
  int error = 0;
  if (connect(fd, address.ai_addr, address.ai_addrlen) != 0) {
    error = errno;
  }
  if (error == EINPROGRESS) {
    pollfd ready{fd, POLLOUT, 0};
    socklen_t length = sizeof(error);
    poll(&ready, 1, kLookForServer.count());
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error == 0) {
    pollfd ended{fd, POLLRDHUP, 0};
    error = poll(&ended, 1, kDying.count()) > 0 ? ECONNREFUSED : 0;
  }
  close(fd);
  return error == ECONNREFUSED || error == EADDRNOTAVAIL;
}

/// Whether nobody listens there. Torch would go on trying for its timeout,
/// which is half an hour unless the program says otherwise.
bool is_gone(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const auto service = std::to_string(port);
  if (getaddrinfo(host.c_str(), service.c_str(), &hints, &found) != 0) {
    return false;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(
      found, &freeaddrinfo);
  for (const auto* one = all.get(); one != nullptr; one = one->ai_next) {
    if (!is_refused(*one)) {
      return false;
    }
  }
  return true;
}

c10::intrusive_ptr<c10d::Store> connect_again(c10d::Store& store) {
  const auto* tcp = dynamic_cast<c10d::TCPStore*>(&store);
  if (tcp == nullptr) {
    return store.clone();
  }
  if (is_gone(tcp->getHost(), tcp->getPort())) {
    throw std::runtime_error("hvd: the store's server is gone");
  }
  c10d::TCPStoreOptions options;
  options.port = tcp->getPort();
  options.waitWorkers = false;
  options.timeout = kTimeout;
  options.useLibUV = tcp->isLibUvBackend();
  return c10::make_intrusive<c10d::TCPStore>(tcp->getHost(), options);
}

/// What is known of a store's second connection. Not by c10's weak pointer,
/// which would keep the connection open.
struct Known {
  std::weak_ptr<c10d::Store> connection;
  Clock::time_point failed; ///< when it was last tried
};

} // namespace

std::shared_ptr<c10d::Store> second_connection(
    const c10::intrusive_ptr<c10d::Store>& store) {
  static std::mutex mutex;
  static std::map<c10d::Store*, Known> all;
  std::lock_guard<std::mutex> lock(mutex);
  const auto now = Clock::now();
  // Whoever has the second connection keeps the first: no address comes again.
  const auto found = all.find(store.get());
  if (found != all.end()) {
    if (auto connection = found->second.connection.lock()) {
      return connection;
    }
    if (now < found->second.failed + kTimeout) {
      throw std::runtime_error("hvd: the store could not be reached just now");
    }
    all.erase(found);
  }
  try {
    const auto holder = std::make_shared<c10::intrusive_ptr<c10d::Store>>(
        connect_again(*store));
    (*holder)->setTimeout(kTimeout);
    const std::shared_ptr<c10d::Store> connection(holder, holder->get());
    all[store.get()].connection = connection;
    return connection;
  } catch (const std::exception&) {
    all[store.get()].failed = now;
    throw;
  }
}

} // namespace hvd
