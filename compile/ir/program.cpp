#include "compile/ir/program.h"

#include <algorithm>

namespace sherd {

std::pair<std::int64_t, std::int64_t> TensorRef::extent() const {
  const std::int64_t size = byte_size(dtype);
  std::int64_t first = offset, last = offset;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return {offset * size, offset * size};
    (strides[i] < 0 ? first : last) += (shape[i] - 1) * strides[i];
  }
  return {first * size, (last + 1) * size};
}

bool operator==(const GraphNode& a, const GraphNode& b) {
  return a.op == b.op && AttrsView(a.attrs) == AttrsView(b.attrs) && std::ranges::equal(a.in, b.in) &&
         std::ranges::equal(a.out, b.out) && a.accumulate == b.accumulate && a.num_mutated == b.num_mutated &&
         a.module == b.module && a.phase == b.phase && a.restores == b.restores && a.releases == b.releases &&
         a.frees == b.frees && a.numbers == b.numbers && a.scratch == b.scratch;
}

void compute_lifetimes(Program& program) {
  constexpr int kNever = -1, kKept = -2;
  std::vector<int> last(program.values.size(), kNever);
  const auto touch = [&](ValueId value, int when) {
    if (value != kNoValue) last[static_cast<std::size_t>(value)] = when;
  };
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    GraphNode& node = program.nodes[i];
    node.frees.clear();
    for (const TensorRef& ref : node.in) touch(ref.value, static_cast<int>(i));
    for (const TensorRef& ref : node.out) touch(ref.value, static_cast<int>(i));
    touch(node.scratch, static_cast<int>(i));
  }
  for (const GraphResult& result : program.results) touch(result.local.value, kKept);
  for (const SlotUpdate& update : program.updates) touch(update.result.local.value, kKept);
  for (std::size_t v = 0; v < last.size(); ++v)
    if (program.values[v].kind == ValueKind::temporary && last[v] >= 0)
      program.nodes[static_cast<std::size_t>(last[v])].frees.push_back(static_cast<ValueId>(v));
}

}  // namespace sherd
