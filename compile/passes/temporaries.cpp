#include "compile/passes/temporaries.h"

#include <algorithm>

#include "compile/ir/builder.h"
#include "compile/ir/rewrite.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

bool is_sum_apart(const GraphNode& node) { return node.accumulate && !node.op->traits.accumulates; }

}  // namespace

void accumulate_apart(Program& program) {
  if (std::ranges::none_of(program.nodes, is_sum_apart)) return;
  std::vector<GraphNode> nodes;
  nodes.reserve(program.nodes.size());
  for (GraphNode& node : program.nodes) {
    if (!is_sum_apart(node)) {
      nodes.push_back(std::move(node));
      continue;
    }
    const SmallVec<TensorRef, 1> into = node.out;
    node.accumulate = false;
    for (TensorRef& out : node.out)
      out = add_temporary(program, out.shape, out.dtype, program.value(out.value).device, MemoryCategory::activations);
    nodes.push_back(std::move(node));
    const std::size_t row = nodes.size() - 1;
    for (const std::size_t i : indices(into)) {
      GraphNode copy = node_beside(nodes[row], op::copy);
      copy.in.push_back(nodes[row].out[i]);
      copy.out.push_back(into[i]);
      copy.accumulate = true;
      nodes.push_back(std::move(copy));
    }
  }
  program.nodes = std::move(nodes);
  settle(program);
}

void scratch_as_values(Program& program) {
  const std::size_t num_values = program.values.size();
  for (GraphNode& node : program.nodes) {
    if (node.scratch != kNoValue) continue;
    const Device device = device_of(program, node);
    const Scratch scratch = kernels_of(*node.op).scratch[static_cast<std::size_t>(device.kind)];
    if (!scratch) continue;
    const std::int64_t bytes = scratch({*node.op, metas_of(program, node), node.attrs});
    if (bytes <= 0) continue;
    node.scratch = add_temporary(program, {bytes}, DType::u8, device, MemoryCategory::workspace).value;
  }
  if (program.values.size() > num_values) compute_lifetimes(program);
}

}  // namespace sherd::ir
