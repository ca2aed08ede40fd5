#include "engine/timeline.h"

#include <array>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace hvd {

namespace {

/// Microseconds, with the nanoseconds behind the point. In integers: this is
/// written ten times and more for each operation.
std::string microseconds(std::chrono::nanoseconds time) {
  const auto thousandths = std::to_string(1000 + time.count() % 1000);
  return std::to_string(time.count() / 1000) + '.' + thousandths.substr(1);
}

/// One operation in the picture: a nest of asynchronous slices with an id of
/// its own.
class Nest {
 public:
  /// Adds to `text`.
  Nest(
      std::string& text,
      const std::string& group,
      const std::string& id,
      int rank)
      : text_(text),
        same_(
            "\",\"cat\":\"group " + group +
            "\",\"pid\":" + std::to_string(rank) + ",\"tid\":0,\"id\":\"" +
            group + '/' + id + "\",\"ts\":") {}

  /// `details`: members of a JSON object.
  void begin(
      std::string_view name,
      Deadline time,
      std::string_view details = "") {
    slice('b', name, time);
    if (!details.empty()) {
      text_.append(",\"args\":{").append(details).append("}");
    }
    text_ += '}';
  }

  void end(std::string_view name, Deadline time) {
    slice('e', name, time);
    text_ += '}';
  }

 private:
  void slice(char phase, std::string_view name, Deadline time) {
    text_.append(",\n{\"ph\":\"").append(1, phase);
    text_.append("\",\"name\":\"").append(name).append(same_);
    text_.append(microseconds(time.time_since_epoch()));
  }

  std::string& text_;
  const std::string same_; ///< in all of them, but for the time
};

std::string details_of(int64_t bytes, const char* transport) {
  return "\"bytes\":" + std::to_string(bytes) + ",\"transport\":\"" +
      transport + '"';
}

} // namespace

Timeline& Timeline::instance() {
  // Never destroyed: a thread may still complete something at exit.
  static Timeline& timeline = *std::make_unique<Timeline>().release();
  return timeline;
}

void Timeline::start(
    const std::string& path,
    int rank,
    const std::string& run) {
  if (on_ && !is_on()) {
    throw std::runtime_error(
        "hvd: this process was forked while a timeline was being written, so "
        "it cannot write one");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (on_) {
    throw std::runtime_error(
        "hvd: a timeline is being written already; stop it first");
  }
  file_.open(path, std::ios::trunc);
  // Microseconds since an arbitrary start; the wall clock lines up other hosts.
  const auto offset = std::chrono::system_clock::now().time_since_epoch() -
      Clock::now().time_since_epoch();
  file_ << "[{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":" << rank
        << ",\"args\":{\"name\":\"rank " << rank << "\",\"run\":\"" << run
        << "\",\"wall_clock_offset_us\":" << microseconds(offset) << "}}"
        << std::flush;
  if (!file_) {
    file_.close();
    throw std::runtime_error("hvd: cannot write the timeline " + path);
  }
  path_ = path;
  rank_ = rank;
  fork_depth_ = fork_depth();
  on_ = true;
}

void Timeline::stop() {
  if (!is_on()) {
    return; // nor take a lock that a thread of the parent may have held
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (on_.exchange(false)) {
    file_ << std::exchange(page_, "") << "\n]\n";
    file_.close();
    if (!file_) {
      throw std::runtime_error(
          "hvd: the timeline " + path_ +
          " is cut short: not all could be written; is the disk full?");
    }
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
  const std::string name = collective.signature.describe();
  const std::string seq = std::to_string(collective.seq);
  std::lock_guard<std::mutex> lock(mutex_);
  if (!on_) {
    return;
  }
  Nest nest(page_, group, seq, rank_);
  nest.begin(
      name,
      times.submitted,
      "\"seq\":" + seq + ",\"batch\":" + std::to_string(times.batch) + ',' +
          details_of(collective.bytes, transport));
  Deadline begin = times.submitted;
  for (const auto& [stage, end] : stages) {
    nest.begin(stage, begin);
    nest.end(stage, end);
    begin = end;
  }
  nest.end(name, done);
}

void Timeline::add_message(
    const std::string& group,
    const char* transport,
    const std::string& name,
    int64_t bytes,
    Deadline submitted) {
  const auto done = Clock::now();
  std::lock_guard<std::mutex> lock(mutex_);
  if (!on_) {
    return;
  }
  Nest nest(page_, group, "message " + std::to_string(messages_++), rank_);
  nest.begin(name, submitted, details_of(bytes, transport));
  nest.end(name, done);
}

void Timeline::write() {
  if (!is_on()) {
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (on_) {
    file_ << page_;
    page_.clear();
  }
}

} // namespace hvd
