#include "common/descriptor.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace hvd {

namespace {

std::mutex mutex; // held while the process forks
std::set<int> open_here;

[[maybe_unused]] const int registered = pthread_atfork(
    [] { mutex.lock(); },
    [] { mutex.unlock(); },
    [] {
      for (const int number : open_here) {
        close(number);
      }
      open_here.clear();
      mutex.unlock();
    });

} // namespace

Descriptor::Descriptor(int number) : number_(number) {
  std::lock_guard<std::mutex> lock(mutex);
  open_here.insert(number);
}

Descriptor::~Descriptor() {
  std::lock_guard<std::mutex> lock(mutex);
  if (open_here.erase(number_) > 0) {
    close(number_);
  }
}

} // namespace hvd
