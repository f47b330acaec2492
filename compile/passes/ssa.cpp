#include "compile/passes/ssa.h"

#include <algorithm>

#include "compile/ir/analysis/loans.h"
#include "compile/ir/rewrite.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

class Splitter {
 public:
  explicit Splitter(Program& program) : program_(program), is_written_(program.values.size(), false) {
    for (const std::size_t v : indices(program.values)) now_.push_back(static_cast<ValueId>(v));
  }

  void run() {
    const std::vector<bool> follows = follows_another_queue(program_);
    for (const std::size_t i : indices(program_.nodes)) split(program_.nodes[i], follows[i]);
    for (GraphResult& result : program_.results) rename(result.local);
    for (SlotUpdate& update : program_.updates) rename(update.result.local);
    settle(program_);
  }

 private:
  // By node: its work waits for that of another queue. A wait for it ends both, as long as they share the bytes.
  static std::vector<bool> follows_another_queue(const Program& program) {
    std::vector<bool> follows(program.nodes.size(), false);
    if (!program.has_waits) return follows;
    Loans loans(program);
    for (const std::size_t i : indices(program.nodes)) {
      const int before = loans.num_items();
      loans.pass(i);
      if (loans.num_items() > before) follows[i] = !loans.item(before).follows.empty();
    }
    return follows;
  }

  // What it reads are the versions of before.
  void split(GraphNode& node, bool is_follower) {
    for (TensorRef& ref : node.in) rename(ref);
    for (TensorRef& out : node.out) {
      if (!is_follower && writes_anew(node, out)) begin_value(out);
      else rename(out);
      is_written_[static_cast<std::size_t>(out.value)] = true;
    }
    if (node.scratch != kNoValue) node.scratch = now_[static_cast<std::size_t>(node.scratch)];
  }

  bool writes_anew(const GraphNode& node, const TensorRef& out) const {
    const Value& value = program_.value(out.value);
    if (value.kind != ValueKind::temporary || value.bytes == 0 || node.accumulate || node.op->traits.effect)
      return false;
    const bool is_whole = out.extent() == std::pair<std::int64_t, std::int64_t>(0, value.bytes) &&
                          numel(out.shape) * byte_size(out.dtype) == value.bytes;
    return is_whole && is_written_[static_cast<std::size_t>(now_[static_cast<std::size_t>(out.value)])];
  }

  void begin_value(TensorRef& out) {
    const ValueId old = out.value, fresh = static_cast<ValueId>(program_.values.size());
    Value value = program_.value(old);
    if (value.place == kNoValue) value.place = old;
    out.value = fresh;
    value.home = out;
    program_.values.push_back(std::move(value));
    is_written_.push_back(true);
    now_.push_back(fresh);
    now_[static_cast<std::size_t>(old)] = fresh;
  }

  void rename(TensorRef& ref) const {
    if (ref.defined()) ref.value = now_[static_cast<std::size_t>(ref.value)];
  }

  Program& program_;
  std::vector<bool> is_written_;  // by value
  std::vector<ValueId> now_;      // by value of before: the one that holds its present version
};

}  // namespace

void ssa(Program& program) { Splitter(program).run(); }

}  // namespace sherd::ir
