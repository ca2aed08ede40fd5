#include "engine/timeline.h"

#include <array>
#include <iomanip>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace hvd {

namespace {

double microseconds(Deadline time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch())
      .count();
}

} // namespace

Timeline& Timeline::instance() {
  // Never destroyed: a thread may still complete something at exit.
  static Timeline& timeline = *std::make_unique<Timeline>().release();
  return timeline;
}

void Timeline::start(const std::string& path, int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (on_) {
    throw std::runtime_error(
        "hvd: a timeline is being written already; stop it first");
  }
  file_.open(path, std::ios::trunc);
  // Microseconds since an arbitrary start; the wall clock lines up other hosts.
  const auto wall = std::chrono::duration<double, std::micro>(
      std::chrono::system_clock::now().time_since_epoch());
  file_ << std::fixed << std::setprecision(3)
        << "[{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":" << rank
        << ",\"args\":{\"name\":\"rank " << rank
        << "\",\"wall_clock_offset_us\":"
        << wall.count() - microseconds(Clock::now()) << "}}" << std::flush;
  if (!file_) {
    file_.close();
    throw std::runtime_error("hvd: cannot write the timeline " + path);
  }
  rank_ = rank;
  on_ = true;
}

void Timeline::stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (on_.exchange(false)) {
    file_ << "\n]\n";
    file_.close();
  }
}

void Timeline::add(
    const std::string& group,
    const char* transport,
    const Collective& collective,
    const Times& times) {
  const auto done = Clock::now();
  const std::array<std::pair<const char*, Deadline>, 5> stages = {
      {{"agree", times.started},
       {"pack", times.packed},
       {"exchange", times.exchanged},
       {"unpack", times.finished},
       {"complete", done}}};
  // One collective is a nest of asynchronous slices with an id of its own.
  std::ostringstream text;
  text << std::fixed << std::setprecision(3);
  const auto slice = [&](char phase, const std::string& name, Deadline time) {
    text << ",\n{\"ph\":\"" << phase << "\",\"cat\":\"group " << group
         << "\",\"name\":\"" << name << "\",\"pid\":" << rank_
         << ",\"tid\":0,\"id\":\"" << group << '/' << collective.seq
         << "\",\"ts\":" << microseconds(time);
  };
  const std::string name = collective.signature.describe();
  slice('b', name, times.submitted);
  text << ",\"args\":{\"seq\":" << collective.seq
       << ",\"bytes\":" << tensor_bytes(collective)
       << ",\"batch\":" << times.batch << ",\"transport\":\"" << transport
       << "\"}}";
  Deadline begin = times.submitted;
  for (const auto& [stage, end] : stages) {
    slice('b', stage, begin);
    text << '}';
    slice('e', stage, end);
    text << '}';
    begin = end;
  }
  slice('e', name, done);
  text << '}';

  std::lock_guard<std::mutex> lock(mutex_);
  if (on_) {
    file_ << text.str();
  }
}

} // namespace hvd
