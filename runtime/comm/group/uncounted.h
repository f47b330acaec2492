#pragma once
// What ranks tell each other about the program, and not for it.
#include "runtime/tensor/no_copy.h"

namespace sherd::comm {

/// What the calling thread communicates while one lives is in nobody's counts: is_agreeing().
class Uncounted : NoCopy {
 public:
  Uncounted();
  ~Uncounted();

 private:
  const bool outer_;
};

}  // namespace sherd::comm
