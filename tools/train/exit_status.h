#pragma once
// How `sherd` ends, for scripts and for `sherd run`, which gives the status of the rank that ended first.
#include <string>
#include <utility>

#include "runtime/tensor/error.h"

namespace sherd::train {

enum ExitStatus : int {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,            ///< the command line or the config is wrong: an unknown flag, a bad value, a missing argument
  kDiverged = 3,         ///< the loss or the gradient norm was not finite, or the loss had jumped
  kStoppedAndSaved = 4,  ///< ended by SIGTERM or SIGINT, after a save
  kStoppedWithoutSave = 5,  ///< ended by SIGTERM or SIGINT, and the save failed
};

/// An error that ends the program with a status of its own.
class ExitError : public Error {
 public:
  ExitError(ExitStatus status, std::string message) : Error(std::move(message)), status_(status) {}
  ExitStatus status() const { return status_; }

 private:
  ExitStatus status_;
};

/// Throws ExitError of kUsage with the formatted message unless `condition` holds.
template <class... Args>
void check_usage(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw ExitError(kUsage, fmt::format(format, std::forward<Args>(args)...));
}

/// Returns what `read` makes of the command line, or of a config file, perhaps with what the ranks show; its Error is
/// one of usage, unless it is of a peer or of memory. Who starts ranks again does not after such an error: it would
/// come again.
template <class Read>
decltype(auto) as_usage(Read&& read) {
  try {
    return read();
  } catch (const ExitError&) { throw; } catch (const CommError&) {
    throw;
  } catch (const OutOfMemory&) { throw; } catch (const Error& error) {
    throw ExitError(kUsage, error.message());
  }
}

}  // namespace sherd::train
