#pragma once
// How `sherd` ends, for scripts and for `sherd run`, which gives the status of the rank that ended first.
#include <string>
#include <utility>

#include "runtime/tensor/error.h"

namespace sherd {

enum ExitStatus : int {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kDiverged = 3,            ///< the loss or the gradient norm was not finite
  kStoppedAndSaved = 4,     ///< ended by SIGTERM or SIGINT, after a save
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

}  // namespace sherd
