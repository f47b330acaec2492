#include "tools/train/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "runtime/os/descriptor.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"
#include "tools/train/exit_status.h"

namespace sherd::train {

namespace {

/// The system lets go of it when the file is closed, however the process ends. Where there are no locks nobody has one.
void take_as_own(std::FILE* stream, std::string_view what, const std::string& path) {
  struct stat state{};
  const bool is_known = ::fstat(::fileno(stream), &state) == 0;
  const int error = errno;
  check(is_known, "cannot look at the {} file \"{}\": {}", what, path, std::strerror(error));
  if (!S_ISREG(state.st_mode)) return;
  if (::flock(::fileno(stream), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  throw FileIsTaken(
      fmt::format("the {} file \"{}\" is written by another run, whose lines would be lost: give each run "
                  "a file of its own, or wait for that one to end",
                  what, path));
}

/// Nothing where there is none.
std::optional<struct stat> look_at(const std::string& path) {
  struct stat state{};
  if (::stat(path.c_str(), &state) == 0) return state;
  const int error = errno;
  check(error == ENOENT || error == ENOTDIR, "cannot look at \"{}\": {}", path, std::strerror(error));
  return std::nullopt;
}

bool is_same_file(const std::string& a, const std::string& b) {
  const std::optional<struct stat> of_a = look_at(a), of_b = look_at(b);
  if (of_a && of_b) return S_ISREG(of_a->st_mode) && of_a->st_dev == of_b->st_dev && of_a->st_ino == of_b->st_ino;
  if (of_a || of_b) return false;
  namespace fs = std::filesystem;
  std::error_code error_a, error_b;
  const fs::path full_a = fs::weakly_canonical(fs::absolute(a, error_a), error_a);
  const fs::path full_b = fs::weakly_canonical(fs::absolute(b, error_b), error_b);
  return !error_a && !error_b && full_a == full_b;
}

}  // namespace

void check_replaceable(const std::string& path, std::string_view what, std::string_view beginning, std::int64_t at) {
  const std::optional<struct stat> state = look_at(path);
  if (!state || !S_ISREG(state->st_mode) || state->st_size == 0) return;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  check(file.is_open(), "cannot open the {} file \"{}\" to see what is in it: {}", what, path, std::strerror(errno));
  std::string text(beginning.size(), '\0');
  const std::int64_t got = read_at(file.get(), at, std::as_writable_bytes(std::span(text)));
  check(got >= 0, "cannot read the {} file \"{}\": {}", what, path, std::strerror(errno));
  text.resize(static_cast<std::size_t>(got));
  check_usage(
      got > 0 && beginning.starts_with(text),
      "the {0} file \"{1}\" is there and holds something else, which would be lost: it does not begin with {2}, "
      "as a {0} file does; name another file, or remove that one",
      what, path, beginning);
}

void check_apart(std::span<const FileOfKey> read, std::span<const FileOfKey> written) {
  for (const std::size_t i : indices(written)) {
    const auto check_other = [&own = written[i]](const FileOfKey& other) {
      if (own.path.empty() || other.path.empty()) return;
      check_usage(!is_same_file(own.path, other.path),
                  "{} = \"{}\" and {} = \"{}\" are one file, which would be lost: give each a file of its own",
                  other.key, other.path, own.key, own.path);
    };
    std::ranges::for_each(read, check_other);
    std::ranges::for_each(written.first(i), check_other);
  }
}

void write_all(const OutputFile& file, std::string_view text, std::string_view what, const std::string& path) {
  const bool is_written =
      std::fwrite(text.data(), 1, text.size(), file.get()) == text.size() && std::fflush(file.get()) == 0;
  check(is_written, "cannot write the {} file \"{}\": {}", what, path, std::strerror(errno));
}

OutputFile open_output(const std::string& path, std::string_view what, OutputMode mode) {
  const int keep = mode == OutputMode::replace ? O_TRUNC : O_APPEND;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | keep, 0666);
  const int error = errno;
  check(file >= 0 || error != ENXIO,
        "cannot create the {} file \"{}\": it is a pipe that nobody reads; start its reader first", what, path);
  check(file >= 0, "cannot create the {} file \"{}\": {}", what, path, std::strerror(error));
  ::fcntl(file, F_SETFL, ::fcntl(file, F_GETFL) & ~O_NONBLOCK);
  OutputFile stream(::fdopen(file, mode == OutputMode::replace ? "w" : "a"));
  if (!stream) ::close(file);
  check(stream != nullptr, "cannot create the {} file \"{}\": no memory", what, path);
  if (mode == OutputMode::own) take_as_own(stream.get(), what, path);
  return stream;
}

}  // namespace sherd::train
