#pragma once
// Def-use: who reads a version. What a write must wait for (write after read) is Versions::readers_before().
#include <cstdint>
#include <span>
#include <vector>

#include "compile/ir/analysis/version.h"

namespace sherd::ir {

/// The readers of every version, in execution order. Linear.
class Uses {
 public:
  struct Reader {
    int node;  ///< size of the program's nodes: the end of the step
    int operand;
    AccessKind kind;
  };
  explicit Uses(const Versions& versions);
  std::span<const Reader> readers_of(VersionId id) const {
    const auto at = static_cast<std::size_t>(id);
    return std::span(readers_).subspan(first_[at], first_[at + 1] - first_[at]);
  }

 private:
  std::vector<std::size_t> first_;  // by version, and one more
  std::vector<Reader> readers_;
};

}  // namespace sherd::ir
