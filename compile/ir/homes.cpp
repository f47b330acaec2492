#include "compile/ir/homes.h"

#include <limits>

#include "compile/ir/builder.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/wait_attrs.h"
#include "runtime/op/unit/unit.h"

namespace sherd::ir {

namespace {

TensorRef all_bytes(const Program& program, ValueId value) {
  const Shape shape{program.value(value).bytes};
  return {value, DType::u8, shape, contiguous_strides(shape), 0};
}

// Waits of the program bound what is in flight.
void append_copy(Program& program, const GraphNode& beside, const TensorRef& to, const TensorRef& from, CopyKind kind) {
  const Device device = program.value((kind == CopyKind::evict ? from : to).value).device;
  constexpr int kUnbounded = std::numeric_limits<int>::max();
  GraphNode copy =
      node_beside(beside, op::copy_start,
                  OffloadAttrs{.device = device, .in_flight = kUnbounded, .activations = true, .kind = kind});
  copy.in = {to, from};
  copy.num_mutated = 1;
  program.nodes.push_back(std::move(copy));
}

}  // namespace

std::vector<bool> homes_of(const Program& program) {
  std::vector<bool> are_homes(program.constants.size());
  for (const GraphNode& node : program.nodes) {
    if (node.op != &op::copy_start) continue;
    for (std::size_t i = 0; i < static_cast<std::size_t>(node.num_mutated); ++i)
      if (const Value& home = program.value(node.in[i].value); home.kind == ValueKind::constant)
        are_homes[static_cast<std::size_t>(home.source)] = true;
  }
  return are_homes;
}

TensorRef add_home(Program& program, std::int64_t bytes, MemoryCategory category) {
  const TensorRef home = add_temporary(program, {bytes}, DType::u8, Device::cpu(), category);
  Value& value = program.value(home.value);
  value.kind = ValueKind::constant;
  value.source = static_cast<int>(program.constants.size());
  program.constants.emplace_back();
  return home;
}

void append_eviction(Program& program, const GraphNode& beside, ValueId value, const TensorRef& home) {
  append_copy(program, beside, home, all_bytes(program, value), CopyKind::evict);
}

ValueId append_fetch(Program& program, const GraphNode& beside, ValueId like, const TensorRef& home) {
  const Value& value = program.value(like);
  GraphNode make = node_beside(beside, op::buffer, BufferAttrs{{value.bytes}, value.category, value.device});
  const TensorRef here = add_temporary(program, {value.bytes}, DType::u8, value.device, value.category);
  make.out = {here};
  program.nodes.push_back(std::move(make));
  append_copy(program, beside, here, home, CopyKind::fetch);
  return here.value;
}

void append_wait(Program& program, const GraphNode& beside, ValueId value) {
  GraphNode wait = node_beside(beside, op::wait, WaitAttrs{.to_write = true});
  wait.in = {all_bytes(program, value)};
  program.nodes.push_back(std::move(wait));
}

}  // namespace sherd::ir
