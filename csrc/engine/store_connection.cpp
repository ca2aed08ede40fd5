#include "engine/store_connection.h"

#include "common/clock.h"
#include "common/fork.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace hvd {

namespace {

// How long a use may take, and how long a store that failed is left alone.
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

using StorePtr = c10::intrusive_ptr<c10d::Store>;

StorePtr connect_to(
    const std::string& host,
    const c10d::TCPStoreOptions& options) {
  if (is_gone(host, options.port)) {
    throw std::runtime_error("hvd: the store's server is gone");
  }
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

/// What makes another connection. It does not hold that of a TCPStore, and may
/// outlive it.
std::function<StorePtr()> connector(const StorePtr& store) {
  const auto* tcp = dynamic_cast<c10d::TCPStore*>(store.get());
  if (tcp == nullptr) {
    return [store] { return store->clone(); };
  }
  c10d::TCPStoreOptions options;
  options.port = tcp->getPort();
  options.waitWorkers = false;
  options.timeout = kTimeout;
  options.useLibUV = tcp->isLibUvBackend();
  return [host = tcp->getHost(), options] { return connect_to(host, options); };
}

/// By the fork that they belong to, for a child cannot use its parent's.
std::map<std::pair<int, c10d::Store*>, std::weak_ptr<StoreConnection>>
    connections;
std::mutex connections_mutex; ///< guards that

// A child has it free: nobody is there to give it back.
[[maybe_unused]] const int registered = pthread_atfork(
    [] { connections_mutex.lock(); },
    [] { connections_mutex.unlock(); },
    [] { connections_mutex.unlock(); });

} // namespace

/// What those who use the store share with the thread that does it for them,
/// which may outlive them.
struct StoreConnection::Line {
  explicit Line(std::function<StorePtr()> connector)
      : connect(std::move(connector)) {}

  struct Call {
    Use use;
    bool over = false;
    bool succeeded = false;
  };

  /// On the call's own thread; there is no other meanwhile.
  void serve(Call& call) {
    bool succeeded = true;
    try {
      if (!store) {
        store = connect();
      }
      call.use(*store);
    } catch (const std::exception&) {
      store.reset(); // a broken one never mends, but there may be a new one
      succeeded = false;
    }
    std::lock_guard<std::mutex> lock(mutex);
    call.over = true;
    call.succeeded = succeeded;
    busy = silent = false;
    if (!succeeded) {
      next_try = Clock::now() + kTimeout;
    }
    changed.notify_all();
  }

  const std::function<StorePtr()> connect;
  StorePtr store; ///< of the thread that serves
  std::mutex mutex; ///< guards what follows, and the calls' outcome
  std::condition_variable changed;
  bool busy = false; ///< a call is being served
  bool silent = false; ///< and nobody waits for it any more
  Deadline next_try; ///< after a failure
};

StoreConnection::StoreConnection(StorePtr store)
    : first_(std::move(store)),
      line_(std::make_shared<Line>(connector(first_))) {}

bool StoreConnection::run(Use use) {
  const auto deadline = Clock::now() + kTimeout;
  const auto call = std::make_shared<Line::Call>();
  call->use = std::move(use);
  Line& line = *line_;
  std::unique_lock<std::mutex> lock(line.mutex);
  line.changed.wait_until(
      lock, deadline, [&] { return !line.busy || line.silent; });
  if (line.busy || Clock::now() < line.next_try) {
    return false;
  }
  std::thread thread;
  try {
    thread = std::thread([line = line_, call] { line->serve(*call); });
  } catch (const std::system_error&) {
    return false; // the system refuses one
  }
  line.busy = true;
  if (!line.changed.wait_until(lock, deadline, [&] { return call->over; })) {
    line.silent = true;
    line.changed.notify_all();
    thread.detach();
    return false;
  }
  lock.unlock();
  thread.join();
  return call->succeeded;
}

std::shared_ptr<StoreConnection> second_connection(const StorePtr& store) {
  std::lock_guard<std::mutex> lock(connections_mutex);
  std::erase_if(
      connections, [](const auto& each) { return each.second.expired(); });
  auto& known = connections[{fork_depth(), store.get()}];
  auto connection = known.lock();
  if (!connection) {
    connection = std::make_shared<StoreConnection>(store);
    known = connection;
  }
  return connection;
}

} // namespace hvd
