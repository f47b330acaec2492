#pragma once
// What a node does to bytes, in one list. Analyses that ask who reads and writes which bytes, in which order, read this
// list; verify() and the ends of lives (lifetimes.h) look at a node's refs too.
//
//   %2 += linear_weight_grad(%1, $0)     reads %1, reads $0, adds to %2
//   adamw(@w!, %2, @lr) {..}             changes @w, reads %2, reads @lr
//   gather_start(@s, &0) restores &0     reads @s, restores &0: all bytes of it are new
//   wait(&0)                             awaits &0: no bytes are read or written
#include <algorithm>
#include <cstdint>
#include <vector>

#include "compile/ir/analysis/byte_ranges.h"
#include "compile/ir/program.h"

namespace sherd::ir {

enum class AccessKind : std::uint8_t {
  input,        ///< read
  mutated,      ///< an input that the kernel writes in place: read and written
  output,       ///< written
  accumulated,  ///< an output that is added to: read and written
  restored,     ///< the value's data comes, all of it: written; also if it is there already
  released,     ///< its data goes: written, by nothing that can be read; also if it is gone already
  awaited,      ///< neither: queues are waited for
};

struct Access {
  AccessKind kind = AccessKind::input;
  int operand = 0;                 ///< index among the inputs or outputs
  ValueId value = kNoValue;        ///< as the ref names it
  ValueId root = kNoValue;         ///< whose bytes they are: arguments that share memory have one root
  ByteRanges::Range bytes{};       ///< of the root; never empty
  const TensorRef* ref = nullptr;  ///< null: the value as a whole
  std::int64_t shift = 0;          ///< bytes from the root's start to the value's
  bool reads = false, writes = false;
};

/// Which values are bytes of others: arguments that share memory with an earlier argument.
class ByteRoots {
 public:
  explicit ByteRoots(const Program& program);
  ValueId root(ValueId value) const { return roots_[static_cast<std::size_t>(value)].value; }
  std::int64_t shift(ValueId value) const { return roots_[static_cast<std::size_t>(value)].shift; }

 private:
  struct Root {
    ValueId value;
    std::int64_t shift;
  };
  std::vector<Root> roots_;
};

/// The accesses of one node: of its inputs, then of its outputs. Which inputs come and go is said by the row's column
/// residency, whatever the node says that it found of it. Refs must name values that exist.
void append_accesses(const Program& program, const ByteRoots& roots, const GraphNode& node, std::vector<Access>& list);

/// Whether the node takes an input as a place only, so that its data may be absent: it restores or releases it, or
/// waits.
bool needs_no_data(const Program& program, const GraphNode& node, std::size_t input);

/// A tensor that is looked at when the step has ended.
Access read_at_end(const Program& program, const ByteRoots& roots, const TensorRef& ref, int operand);

}  // namespace sherd::ir
