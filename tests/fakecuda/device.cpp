// A CUDA device for a torch that knows none, so that what the host does with a
// device's tensors can be tested without one. Its memory is the host's; its
// streams are threads, which do one thing after the other while the host goes
// on. It has what copying and viewing needs, and nothing that computes.

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace {

const c10::Device kDevice(c10::kCUDA, 0);

/// Does what it is given in order, on a thread of its own.
class Worker {
 public:
  Worker() {
    std::thread([this] { run(); }).detach();
  }

  void put(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  bool is_idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return tasks_.empty();
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.empty(); });
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return !tasks_.empty(); });
      lock.unlock();
      std::exchange(tasks_.front(), {})(); // it stays put
      lock.lock();
      tasks_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_; ///< the first is under way
};

constexpr c10::StreamId kPool = 4; ///< streams beside the default one

/// Of a stream; for ever, like their threads.
Worker& worker_of(c10::StreamId id) {
  static auto& workers = *new std::array<Worker, 1 + kPool>();
  return workers.at(id);
}

/// What an event waits for: how often it was recorded, and how often that has
/// come.
struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  int recorded = 0;
  int come = 0;

  void wait_for(int number) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return come >= number; });
  }
};

using EventPtr = std::shared_ptr<Event>;

thread_local c10::StreamId current_stream = 0;
thread_local bool capturing = false;

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override {
    return c10::kCUDA;
  }
  c10::Device exchangeDevice(c10::Device /*device*/) const override {
    return kDevice;
  }
  c10::Device getDevice() const override {
    return kDevice;
  }
  void setDevice(c10::Device /*device*/) const override {}
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override {
    return 1;
  }

  c10::Stream getStream(c10::Device /*device*/) const override {
    return stream(current_stream);
  }
  c10::Stream getStreamFromGlobalPool(
      c10::Device /*device*/,
      bool /*is_high_priority*/) const override {
    static std::atomic<c10::StreamId> last{0};
    return stream(1 + last++ % kPool);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(current_stream, next.id()));
  }
  bool isStreamCapturing(const c10::Stream& /*stream*/) const override {
    return capturing;
  }
  bool queryStream(const c10::Stream& stream) const override {
    return worker_of(stream.id()).is_idle();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    worker_of(stream.id()).wait();
  }

  void record(
      void** event,
      const c10::Stream& stream,
      const c10::DeviceIndex /*device*/,
      const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) {
      *event = new EventPtr(std::make_shared<Event>());
    }
    const auto recorded = get(*event);
    {
      std::lock_guard<std::mutex> lock(recorded->mutex);
      ++recorded->recorded;
    }
    worker_of(stream.id()).put([recorded] {
      std::lock_guard<std::mutex> lock(recorded->mutex);
      ++recorded->come;
      recorded->changed.notify_all();
    });
  }
  void block(void* event, const c10::Stream& stream) const override {
    const auto awaited = get(event);
    worker_of(stream.id()).put([awaited, number = recorded(event)] {
      awaited->wait_for(number);
    });
  }
  bool queryEvent(void* event) const override {
    const auto asked = get(event);
    std::lock_guard<std::mutex> lock(asked->mutex);
    return asked->come == asked->recorded;
  }
  void synchronizeEvent(void* event) const override {
    get(event)->wait_for(recorded(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/)
      const noexcept override {
    delete static_cast<EventPtr*>(event);
  }

 private:
  static c10::Stream stream(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, kDevice, id);
  }
  static EventPtr get(void* event) {
    return *static_cast<EventPtr*>(event);
  }
  static int recorded(void* event) {
    const auto asked = get(event);
    std::lock_guard<std::mutex> lock(asked->mutex);
    return asked->recorded;
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

/// The host's memory, under another name.
class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const begin = c10::alloc_cpu(bytes);
    return {begin, begin, &c10::free_cpu, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &c10::free_cpu;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Memory memory;

/// For pinned memory, which is any. torch has looked for CUDA's hooks by now,
/// so another accelerator has to give it.
class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override {
    return true;
  }
  void init() const override {}
  at::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetCPUAllocator();
  }
};

/// Once loaded, for ever.
const bool has_hooks = [] {
  c10::register_privateuse1_backend("fake");
  static auto& hooks = *new Hooks();
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

std::atomic<int64_t> crossed_bytes{0};

at::Tensor empty(
    at::IntArrayRef sizes,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> /*device*/,
    std::optional<bool> /*pin_memory*/,
    std::optional<at::MemoryFormat> format) {
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_generic(
      sizes, &memory, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> /*device*/,
    std::optional<bool> /*pin_memory*/) {
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_strided_generic(
      sizes, strides, &memory, keys, c10::dtype_or_default(dtype));
}

/// The same memory as a tensor of the host, which keeps it.
at::Tensor on_host(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.data_ptr(),
      tensor.sizes(),
      tensor.strides(),
      [kept = tensor.storage()](void* /*data*/) {},
      at::TensorOptions(tensor.dtype()));
}

/// On the current stream; the host waits where it has a part in it, as for
/// memory that is not pinned.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool /*blocking*/) {
  auto& worker = worker_of(current_stream);
  worker.put([to = on_host(to), from = on_host(from)] {
    const at::AutoDispatchBelowADInplaceOrView untracked;
    to.copy_(from);
  });
  if (to.is_cpu() || from.is_cpu()) {
    crossed_bytes += static_cast<int64_t>(to.nbytes());
    worker.wait();
  }
  return to;
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy);
  library.impl("view", &at::native::view);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
}

/// A copy on the device of a tensor of the host.
at::Tensor upload(const at::Tensor& tensor) {
  const auto options = tensor.options().device(kDevice);
  return at::empty(tensor.sizes(), options).copy_(tensor);
}

/// What this thread puts on the device goes there from now on.
void use_stream(c10::StreamId id) {
  current_stream = id;
}

/// Says from now on that a graph is being captured, which none is.
void capture(bool yes) {
  capturing = yes;
}

/// Keeps the current stream busy, and with `pool` those of the pool.
void sleep(double seconds, bool pool) {
  const auto doze = [seconds] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  };
  worker_of(current_stream).put(doze);
  for (c10::StreamId id = 1; pool && id <= kPool; ++id) {
    worker_of(id).put(doze);
  }
}

/// Keeps the current stream busy until there is such a file.
void hold(const std::string& path) {
  worker_of(current_stream).put([path] {
    while (!std::filesystem::exists(path)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
}

/// Bytes copied between host and device so far.
int64_t crossed() {
  return crossed_bytes;
}

TORCH_LIBRARY(fakecuda, library) {
  library.def("upload", &upload);
  library.def("use_stream", &use_stream);
  library.def("capture", &capture);
  library.def("sleep", &sleep);
  library.def("hold", &hold);
  library.def("crossed", &crossed);
}

} // namespace
