#pragma once
// Files are read by position, so that one that is truncated meanwhile is an Error.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <streambuf>
#include <string>

#include "runtime/os/descriptor.h"

namespace sherd::ckpt {

/// An open regular file. Reading blocks on the disk; any number of threads may read at once.
class InputFile {
 public:
  /// Throws Error naming the file if it cannot be opened or is a folder, pipe or device.
  explicit InputFile(std::string path);
  const std::string& path() const { return path_; }
  /// Size when the file was opened.
  std::int64_t bytes() const { return bytes_; }
  /// Fills `out` from byte `offset` on. Throws Error naming the file if it no longer reaches that far.
  void read(std::int64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  Descriptor descriptor_;
  std::int64_t bytes_ = 0;
};

/// The whole file as text; throws Error naming it if it has more than `max_bytes`.
std::string read_text(const InputFile& file, std::int64_t max_bytes);

/// A range of a file as characters, read through a small buffer. Borrows the file.
class FileText : public std::streambuf {
 public:
  FileText(const InputFile& file, std::int64_t begin, std::int64_t end) : file_(file), at_(begin), end_(end) {}

 private:
  int_type underflow() override;

  const InputFile& file_;
  std::int64_t at_, end_;
  std::array<char, 1 << 14> part_;
};

}  // namespace sherd::ckpt
