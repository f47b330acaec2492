#pragma once
// How a rank leaves: the peers learn that it is done, so that it is not taken for one that died; and where its process
// ends by itself, with which status and after which step.
#include "runtime/comm/board/board_memory.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::comm {

/// The last word of a rank, from its handle in lane 0; those of other lanes say nothing. At the end of a process it
/// comes from the boards of roots that are alive.
class ExitWord : NoCopy {
 public:
  explicit ExitWord(const BoardMemory& memory);
  /// Tells the peers that this rank has left for good, unless it was forked off.
  ~ExitWord();

 private:
  static void say_all(int status, void*);
  bool is_of_process() const;
  void say(int status) const;

  const BoardMemory& memory_;
  const int exceptions_at_start_;
};

}  // namespace sherd::comm
