#include "transport/mpi/pmi.h"

#include <c10/util/Exception.h>

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <vector>

namespace hvd::mpi {

namespace {

constexpr const char* kMappingKey = "PMI_process_mapping";

std::map<std::string, std::string> fields_of(const std::string& line) {
  std::map<std::string, std::string> fields;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    if (equals != std::string::npos) {
      fields[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  return fields;
}

void send_all(int socket, const std::string& text) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t more =
        ::send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (more < 0 && errno != EINTR) {
      return; // the library has hung up
    }
    sent += more > 0 ? more : 0;
  }
}

} // namespace

PmiResponder::PmiResponder(c10::intrusive_ptr<c10d::Store> store, Place place)
    : store_(std::move(store)), place_(std::move(place)) {
  std::array<int, 2> ends{};
  TORCH_CHECK(
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0,
      "hvd: a pair of sockets for MPI: ",
      std::strerror(errno));
  ours_ = ends[0];
  theirs_ = ends[1];
  thread_ = std::thread([this] { serve(); });
}

PmiResponder::~PmiResponder() {
  shutdown(ours_, SHUT_RDWR);
  thread_.join();
  close(ours_);
  close(theirs_);
}

std::map<std::string, std::string> PmiResponder::variables() const {
  return {
      {"PMI_FD", std::to_string(theirs_)},
      {"PMI_RANK", std::to_string(place_.rank)},
      {"PMI_SIZE", std::to_string(place_.size)}};
}

void PmiResponder::serve() {
  std::string received;
  std::array<char, 4096> part{};
  while (true) {
    const ssize_t count = read(ours_, part.data(), part.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return;
    }
    received.append(part.data(), count);
    for (auto end = received.find('\n'); end != std::string::npos;
         end = received.find('\n')) {
      const auto command = fields_of(received.substr(0, end));
      received.erase(0, end + 1);
      send_all(ours_, answer(command));
    }
  }
}

std::string PmiResponder::answer(const Fields& command) {
  const auto field = [&](const char* name) {
    const auto found = command.find(name);
    return found == command.end() ? std::string() : found->second;
  };
  const auto name = field("cmd");
  try {
    if (name == "init") {
      return "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n";
    }
    if (name == "get_maxes") {
      return "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\n";
    }
    if (name == "get_appnum") {
      return "cmd=appnum rc=0 appnum=0\n";
    }
    if (name == "get_universe_size") {
      return "cmd=universe_size rc=0 size=" + std::to_string(place_.size) +
          "\n";
    }
    if (name == "get_my_kvsname") {
      return "cmd=my_kvsname rc=0 kvsname=" + place_.name + "\n";
    }
    if (name == "put") {
      store_->set("key/" + field("key"), field("value"));
      return "cmd=put_result rc=0 msg=success\n";
    }
    if (name == "get") {
      return answer_get(field("key"));
    }
    if (name == "barrier_in") {
      meet();
      return "cmd=barrier_out rc=0\n";
    }
    if (name == "finalize") {
      return "cmd=finalize_ack rc=0\n";
    }
    return "cmd=" + name + "_result rc=-1 msg=unknown_command\n";
  } catch (const std::exception&) {
    // The store has gone, or a rank has not come; MPI_Init says that it failed.
    return "cmd=" + name + "_result rc=-1 msg=store_failed\n";
  }
}

std::string PmiResponder::answer_get(const std::string& key) {
  if (key == kMappingKey) {
    return "cmd=get_result rc=0 value=" + place_.mapping + "\n";
  }
  const auto stored = "key/" + key;
  if (!store_->check({stored})) {
    return "cmd=get_result rc=-1 msg=no_such_key\n";
  }
  return "cmd=get_result rc=0 value=" + store_->get_to_str(stored) + "\n";
}

void PmiResponder::meet() {
  const auto meeting = "meeting/" + std::to_string(meetings_++);
  const auto all_here = meeting + "/all";
  if (store_->add(meeting, 1) == place_.size) {
    store_->set(all_here, "1");
  }
  store_->wait({all_here}, place_.timeout);
}

} // namespace hvd::mpi
