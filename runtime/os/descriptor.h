#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace sherd {

/// Owns a file descriptor; -1 is none.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  explicit operator bool() const { return is_open(); }
  void reset();

 private:
  int fd_;
};

/// Reads from position `offset` until `out` is full or the file ends; returns the bytes read, or -1 with errno set.
/// Where a mapping of a file that is cut short kills the process, this gives a short read.
std::int64_t read_at(int fd, std::int64_t offset, std::span<std::byte> out);

}  // namespace sherd
