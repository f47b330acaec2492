#include "nn/checkpoint/format/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/tensor/error.h"

namespace sherd::ckpt {

InputFile::InputFile(std::string path)
    : path_(std::move(path)),
      descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {  // a pipe would wait for its writer
  const int error = errno;
  check(descriptor_.is_open(), "cannot open \"{}\": {}", path_, std::strerror(error));
  struct stat status{};
  const bool is_known = ::fstat(descriptor_.get(), &status) == 0;
  check(is_known, "cannot look at \"{}\": {}", path_, std::strerror(errno));
  check(S_ISREG(status.st_mode), "\"{}\" is not a regular file", path_);
  bytes_ = static_cast<std::int64_t>(status.st_size);
}

void InputFile::read(std::int64_t offset, std::span<std::byte> out) const {
  const std::int64_t got = read_at(descriptor_.get(), offset, out);
  const int error = errno;
  check(got >= 0, "cannot read \"{}\": {}", path_, std::strerror(error));
  check(got == static_cast<std::int64_t>(out.size()), "\"{}\" was cut short while it was open: it ends at byte {}",
        path_, offset + got);
}

std::string read_text(const InputFile& file, std::int64_t max_bytes) {
  check(file.bytes() <= max_bytes, "\"{}\" has {} bytes; at most {} are expected", file.path(), file.bytes(),
        max_bytes);
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

FileText::int_type FileText::underflow() {
  const auto bytes = static_cast<std::size_t>(std::min<std::int64_t>(part_.size(), end_ - at_));
  if (bytes == 0) return traits_type::eof();
  file_.read(at_, std::as_writable_bytes(std::span(part_).first(bytes)));
  at_ += static_cast<std::int64_t>(bytes);
  setg(part_.data(), part_.data(), part_.data() + bytes);
  return traits_type::to_int_type(part_[0]);
}

}  // namespace sherd::ckpt
