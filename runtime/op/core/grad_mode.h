#pragma once
// Whether calls are put on the tape: a mode of the rank's thread.
#include "runtime/tensor/for_scope.h"

namespace sherd {

/// Turns recording off (or on) for a scope on this thread.
class GradMode {
 public:
  explicit GradMode(bool enabled);

 private:
  const ForScope<bool> scope_;
};

}  // namespace sherd
