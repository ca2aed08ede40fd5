#pragma once

#include "transport/mpi/calls.h"
#include "transport/mpi/table.h"

#include <utility>

/// The interface of calls.h over one ABI.
namespace hvd::mpi {

template <typename Abi>
class BoundMessages final : public Messages {
 public:
  BoundMessages(const Table<Abi>& table, typename Abi::Comm comm)
      : table_(table), comm_(comm) {}

  void send(const std::byte* from, int64_t bytes, int peer, int tag) override {
    Part part{{}, peer, false};
    table_.call(
        table_.isend,
        from,
        static_cast<int>(bytes),
        table_.predefined.byte,
        peer,
        tag,
        comm_,
        &part.request);
    parts_.push_back(part);
  }

  void receive(std::byte* to, int64_t bytes, int peer, int tag) override {
    Part part{{}, peer, true};
    table_.call(
        table_.irecv,
        to,
        static_cast<int>(bytes),
        table_.predefined.byte,
        peer,
        tag,
        comm_,
        &part.request);
    parts_.push_back(part);
  }

  bool test() override {
    for (; done_ < parts_.size(); ++done_) {
      auto& part = parts_[done_];
      typename Abi::Status status{};
      int done = 0;
      table_.call(table_.test, &part.request, &done, &status);
      if (done == 0) {
        return false;
      }
      source_ = part.is_receive ? status.MPI_SOURCE : source_;
    }
    return true;
  }

  void cancel_receives() override {
    for (size_t i = done_; i < parts_.size(); ++i) {
      if (parts_[i].is_receive) {
        table_.call(table_.cancel, &parts_[i].request);
      }
    }
  }

  size_t done() const override {
    return done_;
  }
  int awaited_peer() const override {
    return done_ < parts_.size() ? parts_[done_].peer : kNone;
  }
  bool awaits_receive() const override {
    return done_ < parts_.size() && parts_[done_].is_receive;
  }
  int source() const override {
    return source_;
  }

 private:
  struct Part {
    typename Abi::Request request;
    int peer;
    bool is_receive;
  };

  const Table<Abi>& table_;
  const typename Abi::Comm comm_;
  std::vector<Part> parts_;
  size_t done_ = 0;
  int source_ = -1;
};

/// Has a communicator return its errors, as long as this lives: the world's
/// handler is that of whoever has started MPI, and mostly ends the job. Not for
/// two threads at once: nor does c10d make groups so.
template <typename Abi>
class ErrorsReturned {
 public:
  ErrorsReturned(const Table<Abi>& table, typename Abi::Comm comm)
      : table_(table), comm_(comm) {
    table_.call(table_.comm_get_errhandler, comm_, &before_);
    table_.call(
        table_.comm_set_errhandler, comm_, table_.predefined.errors_return);
  }
  ErrorsReturned(const ErrorsReturned&) = delete;
  ErrorsReturned& operator=(const ErrorsReturned&) = delete;
  ~ErrorsReturned() {
    try {
      table_.call(table_.comm_set_errhandler, comm_, before_);
      table_.call(table_.errhandler_free, &before_);
    } catch (const TransportError&) {
      // It stays then.
    }
  }

 private:
  const Table<Abi>& table_;
  const typename Abi::Comm comm_;
  typename Abi::Errhandler before_{};
};

template <typename Abi>
class BoundCommunicator final : public Communicator {
 public:
  BoundCommunicator(const Table<Abi>& table, typename Abi::Comm comm)
      : table_(table), comm_(comm) {}

  int rank() override {
    return asked(table_.comm_rank);
  }
  int size() override {
    return asked(table_.comm_size);
  }

  int max_tag() override {
    constexpr int kLeast = 32767; // of any library
    int* value = nullptr;
    int found = 0;
    table_.call(
        table_.comm_get_attr, comm_, Abi::kTagUpperBound, &value, &found);
    return found != 0 ? *value : kLeast;
  }

  MessagesPtr messages() override {
    return std::make_unique<BoundMessages<Abi>>(table_, comm_);
  }

  int probe(int tag, int peer) override {
    typename Abi::Status status{};
    int found = 0;
    const int source = peer == Messages::kAnyPeer ? Abi::kAnySource : peer;
    table_.call(table_.iprobe, source, tag, comm_, &found, &status);
    return found != 0 ? status.MPI_SOURCE : -1;
  }

  std::unique_ptr<Communicator> create(const std::vector<int>& ranks, int tag)
      override {
    const ErrorsReturned<Abi> meanwhile(table_, comm_);
    typename Abi::Group all{};
    table_.call(table_.comm_group, comm_, &all);
    typename Abi::Group some{};
    table_.call(
        table_.group_incl,
        all,
        static_cast<int>(ranks.size()),
        ranks.data(),
        &some);
    typename Abi::Comm created{};
    table_.call(table_.comm_create_group, comm_, some, tag, &created);
    table_.call(table_.group_free, &some);
    table_.call(table_.group_free, &all);
    table_.call(
        table_.comm_set_errhandler, created, table_.predefined.errors_return);
    return std::make_unique<BoundCommunicator>(table_, created);
  }

  void free() override {
    table_.call(table_.comm_free, &comm_);
  }

 private:
  template <typename Function>
  int asked(const Function& function) const {
    int answer = 0;
    table_.call(function, comm_, &answer);
    return answer;
  }

  const Table<Abi>& table_;
  typename Abi::Comm comm_;
};

template <typename Abi>
class BoundCalls final : public Calls {
 public:
  explicit BoundCalls(const Library& library) : table_(library) {}

  bool is_initialised() override {
    return asked(table_.initialized) != 0;
  }
  bool is_finalised() override {
    return asked(table_.finalized) != 0;
  }

  void initialise() override {
    int granted = 0;
    table_.call(
        table_.init_thread, nullptr, nullptr, Abi::kThreadMultiple, &granted);
    table_.call(
        table_.comm_set_errhandler,
        table_.predefined.world,
        table_.predefined.errors_return);
  }

  void finalise() override {
    table_.call(table_.finalize);
  }

  bool settle_threads() override {
    const bool any = asked(table_.query_thread) >= Abi::kThreadMultiple;
    if (!any) {
      table_.take_turns();
    }
    return any;
  }

  std::unique_ptr<Communicator> world() override {
    return std::make_unique<BoundCommunicator<Abi>>(
        table_, table_.predefined.world);
  }

 private:
  template <typename Function>
  int asked(const Function& function) const {
    int answer = 0;
    table_.call(function, &answer);
    return answer;
  }

  Table<Abi> table_;
};

} // namespace hvd::mpi
