#include "tools/train/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/tensor/error.h"

namespace sherd {

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

}  // namespace

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

}  // namespace sherd
