#pragma once
// What a profiler that was told to wait (`ncu --profile-from-start off`) shall look at.
#include <string>

#include "runtime/tensor/no_copy.h"

namespace sherd::bench {

/// From construction to destruction the CUDA profiler records the work of the process. The driver's own call, found at
/// run time: nothing else here needs the driver, and without a GPU there is none. A CUDA context must be current.
class ProfilerRange : NoCopy {
 public:
  ProfilerRange();
  ~ProfilerRange();
  /// Empty, or why nothing is recorded.
  const std::string& why_not() const { return why_not_; }

 private:
  int (*stop_)() = nullptr;
  std::string why_not_;
};

}  // namespace sherd::bench
