#include "compile/ir/access.h"

namespace sherd {

namespace {

bool names(const std::vector<ValueId>& list, ValueId value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Empty tensors have no bytes. They count as reading the value, so that they come after what makes it; of an empty
// value, as using its one imaginary byte.
Access access_to(const Program& program, const ByteRoots& roots, const TensorRef& ref, AccessKind kind, int operand) {
  Access access{.kind = kind, .operand = operand, .value = ref.value, .root = roots.root(ref.value), .ref = &ref};
  access.shift = roots.shift(ref.value);
  access.reads = kind == AccessKind::input || kind == AccessKind::mutated || kind == AccessKind::accumulated;
  access.writes = kind != AccessKind::input && kind != AccessKind::awaited;
  access.bytes = ref.extent();
  if (access.bytes.first == access.bytes.second) {
    const std::int64_t all = program.value(ref.value).bytes;
    access.bytes = {0, std::max<std::int64_t>(all, 1)};
    if (all > 0 && access.writes) access.reads = true, access.writes = false;
  }
  access.bytes.first += access.shift;
  access.bytes.second += access.shift;
  return access;
}

Access whole_access(const Program& program, const ByteRoots& roots, ValueId value, AccessKind kind, int operand) {
  return {.kind = kind,
          .operand = operand,
          .value = value,
          .root = roots.root(value),
          .bytes = {0, std::max<std::int64_t>(program.value(value).bytes, 1)},
          .writes = true};
}

int operand_of(const GraphNode& node, ValueId value) {
  for (std::size_t i = 0; i < node.in.size(); ++i)
    if (node.in[i].value == value) return static_cast<int>(i);
  return -1;
}

// Of rows with effects whose last input is a unit's storage and that touch no bytes of it: one that has a queue fills
// it, one that has none lets its data go, also where the recorded run found it filled, or gone. The inputs before it
// are read, units' storages or not.
bool handles_data_of(const Program& program, const GraphNode& node, ValueId value) {
  const Traits& traits = node.op->traits;
  return traits.effect && traits.issues && program.value(value).kind == ValueKind::unit &&
         node.in[node.in.size() - 1].value == value;
}

}  // namespace

ByteRoots::ByteRoots(const Program& program) {
  std::vector<ValueId> arguments(program.arguments.size(), kNoValue);
  roots_.reserve(program.values.size());
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    const Value& value = program.values[v];
    roots_.push_back({static_cast<ValueId>(v), 0});
    if (value.kind == ValueKind::argument) arguments[static_cast<std::size_t>(value.source)] = static_cast<ValueId>(v);
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const ArgumentGuard& guard = program.arguments[i];
    if (guard.shares < 0 || guard.shares >= static_cast<int>(i) || arguments[i] == kNoValue) continue;
    const ValueId other = arguments[static_cast<std::size_t>(guard.shares)];
    if (other == kNoValue) continue;
    const Root root = roots_[static_cast<std::size_t>(other)];
    roots_[static_cast<std::size_t>(arguments[i])] = {root.value, root.shift + guard.shift};
  }
}

void append_accesses(const Program& program, const ByteRoots& roots, const GraphNode& node, std::vector<Access>& list) {
  for (std::size_t i = 0; i < node.in.size(); ++i) {
    const TensorRef& ref = node.in[i];
    if (!ref.defined() || names(node.restores, ref.value) || names(node.releases, ref.value)) continue;
    const bool mutated = static_cast<int>(i) < node.num_mutated;
    const auto operand = static_cast<int>(i);
    if (node.op->traits.waits) {
      list.push_back(access_to(program, roots, ref, AccessKind::awaited, operand));
    } else if (handles_data_of(program, node, ref.value)) {
      const AccessKind kind = node.op->queue ? AccessKind::restored : AccessKind::released;
      list.push_back(access_to(program, roots, ref, kind, operand));
      list.back().ref = nullptr;
    } else {
      list.push_back(access_to(program, roots, ref, mutated ? AccessKind::mutated : AccessKind::input, operand));
    }
  }
  const AccessKind output = node.accumulate ? AccessKind::accumulated : AccessKind::output;
  for (std::size_t i = 0; i < node.out.size(); ++i)
    if (node.out[i].defined()) list.push_back(access_to(program, roots, node.out[i], output, static_cast<int>(i)));
  for (const ValueId v : node.restores)
    list.push_back(whole_access(program, roots, v, AccessKind::restored, operand_of(node, v)));
  for (const ValueId v : node.releases)
    list.push_back(whole_access(program, roots, v, AccessKind::released, operand_of(node, v)));
}

bool needs_no_data(const Program& program, const GraphNode& node, ValueId value) {
  return node.op->traits.waits || handles_data_of(program, node, value) || names(node.restores, value) ||
         names(node.releases, value);
}

Access read_at_end(const Program& program, const ByteRoots& roots, const TensorRef& ref, int operand) {
  return access_to(program, roots, ref, AccessKind::input, operand);
}

}  // namespace sherd
