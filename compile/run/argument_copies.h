#pragma once
// What a step reads of its arguments, and what it reads of a tensor of its own that a call happens to pass, look alike
// in a recording. Where arguments lie elsewhere in a second one, they do not.
#include <span>
#include <vector>

#include "compile/ir/graph.h"

namespace sherd {

/// The arguments of one call, in memory of their own but for those that `program` writes or hands out, those that lie
/// far apart, and those that there is no memory for. What shared memory still does, in the same places. Local.
class ArgumentCopies {
 public:
  ArgumentCopies(const ir::Program& program, std::span<const Tensor> arguments);

  std::span<const Tensor> arguments() const { return arguments_; }
  /// Where another program was recorded with them and has written some: brings that to the arguments themselves.
  void write_back(const ir::Program& program) const;

 private:
  struct Copy {
    std::vector<std::size_t> arguments;  // of one storage
    Tensor from, to;                     // their bytes: u8
  };
  void copy(std::vector<std::size_t> members);

  std::vector<Tensor> arguments_;
  std::vector<Copy> copies_;
};

}  // namespace sherd
