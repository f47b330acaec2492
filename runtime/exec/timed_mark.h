#pragma once
// Marks of devices that keep times.
#include <cstdint>

#include "runtime/exec/backend.h"

namespace sherd {

class TimedMark : public DeviceMark {
 public:
  /// When it was reached, as Trace::now(); 0 while it is not. Waits for nothing. On the rank's thread.
  virtual std::int64_t time() = 0;
};

}  // namespace sherd
