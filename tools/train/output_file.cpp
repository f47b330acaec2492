#include "tools/train/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/tensor/error.h"

namespace sherd {

OutputFile open_output(const std::string& path, std::string_view what, OutputMode mode) {
  const int keep = mode == OutputMode::append ? O_APPEND : O_TRUNC;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | keep, 0666);
  const int error = errno;
  check(file >= 0 || error != ENXIO,
        "cannot create the {} file \"{}\": it is a pipe that nobody reads; start its reader first", what, path);
  check(file >= 0, "cannot create the {} file \"{}\": {}", what, path, std::strerror(error));
  ::fcntl(file, F_SETFL, ::fcntl(file, F_GETFL) & ~O_NONBLOCK);
  OutputFile stream(::fdopen(file, mode == OutputMode::append ? "a" : "w"));
  if (!stream) ::close(file);
  check(stream != nullptr, "cannot create the {} file \"{}\": no memory", what, path);
  return stream;
}

}  // namespace sherd
