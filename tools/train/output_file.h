#pragma once
// Files that a run writes as it goes: metrics, traces.
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/tensor/error.h"

namespace sherd {

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

}  // namespace sherd
