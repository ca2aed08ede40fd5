#pragma once

namespace hvd {

/// A file descriptor that is closed when this goes, and in every child that is
/// forked before: one kept open there would outlive this process, and its peers
/// would not hear of its end.
class Descriptor {
 public:
  /// Takes it over.
  explicit Descriptor(int number);
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  operator int() const {
    return number_;
  }

 private:
  const int number_;
};

} // namespace hvd
