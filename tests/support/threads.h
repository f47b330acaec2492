#pragma once
#include "runtime/cpu/parallel.h"

namespace sherd::testing {

/// The number of threads for a scope; it is the thread's, and every test leaves it as it was.
class Threads {
 public:
  explicit Threads(int count) : before_(threads()) { set_threads(count); }
  ~Threads() { set_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace sherd::testing
