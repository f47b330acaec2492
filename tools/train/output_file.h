#pragma once
// Files that a run writes as it goes: metrics, traces.
#include <chrono>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "runtime/tensor/error.h"

namespace sherd::train {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
/// Another process writes the file.
class FileIsTaken : public Error {
 public:
  using Error::Error;
};

using OutputFile = std::unique_ptr<std::FILE, CloseFile>;

enum class OutputMode {
  replace,
  own,  ///< append, and no other process that asks for it has the file meanwhile; pipes and the like are anybody's
};

/// Opens `path` for writing; `what` names it in errors: "metrics". Never waits: a pipe that nobody reads is an Error,
/// as is what cannot be created, and what another process has as its own: FileIsTaken. Writing to a pipe later waits
/// for its reader as ever.
OutputFile open_output(const std::string& path, std::string_view what, OutputMode mode = OutputMode::replace);

/// Writes the text, through to the system. Error naming the `what` file if it cannot.
void write_all(const OutputFile& file, std::string_view text, std::string_view what, const std::string& path);

/// What `work` returns; tried again while it throws `Taken`: a process that was killed has its files for a moment yet.
template <class Taken, class Work>
auto when_free(std::chrono::seconds limit, const Work& work) {
  for (const auto until = std::chrono::steady_clock::now() + limit;;) {
    try {
      return work();
    } catch (const Taken&) {
      if (std::chrono::steady_clock::now() >= until) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

/// What is at `path` is lost when the `what` file is written there. Throws ExitError of kUsage if that is no earlier
/// one: a regular file of which the bytes from `at` on do not begin with `beginning`, or are a part of that, as of a
/// run that was killed at once. Error naming the file if it cannot be read.
void check_replaceable(const std::string& path, std::string_view what, std::string_view beginning, std::int64_t at = 0);

struct FileOfKey {
  std::string_view key;
  std::string path;  ///< empty: none
};
/// Throws ExitError of kUsage, naming both keys, if one of `written` is another of them or one of `read`: one file,
/// under whatever name, or one place where there is none yet. Pipes and devices are anybody's.
void check_apart(std::span<const FileOfKey> read, std::span<const FileOfKey> written);

}  // namespace sherd::train
