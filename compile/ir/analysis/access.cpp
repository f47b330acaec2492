#include "compile/ir/analysis/access.h"

#include <optional>

#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

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

// What a row does to the data of a unit's storage that it takes as a place; nothing: it is an operand as any other.
std::optional<AccessKind> residency_change(const Program& program, const GraphNode& node, std::size_t input) {
  const ResidencyChange& change = node.op->residency;
  const bool restores = change.restores_input(input, node.attrs);
  if (!restores && !change.releases_input(input, node.attrs)) return {};
  const ValueId value = node.in[input].value;
  if (value == kNoValue || program.value(value).kind != ValueKind::unit) return {};
  return restores ? AccessKind::restored : AccessKind::released;
}

}  // namespace

ByteRoots::ByteRoots(const Program& program) {
  std::vector<ValueId> arguments(program.arguments.size(), kNoValue);
  roots_.reserve(program.values.size());
  for (const std::size_t v : indices(program.values)) {
    const Value& value = program.values[v];
    roots_.push_back({static_cast<ValueId>(v), 0});
    if (value.kind == ValueKind::argument) arguments[static_cast<std::size_t>(value.source)] = static_cast<ValueId>(v);
  }
  for (const std::size_t i : indices(arguments)) {
    const ArgumentGuard& guard = program.arguments[i];
    if (guard.shares < 0 || guard.shares >= static_cast<int>(i) || arguments[i] == kNoValue) continue;
    const ValueId other = arguments[static_cast<std::size_t>(guard.shares)];
    if (other == kNoValue) continue;
    const Root root = roots_[static_cast<std::size_t>(other)];
    roots_[static_cast<std::size_t>(arguments[i])] = {root.value, root.shift + guard.shift};
  }
}

void append_accesses(const Program& program, const ByteRoots& roots, const GraphNode& node, std::vector<Access>& list) {
  for (const std::size_t i : indices(node.in)) {
    const TensorRef& ref = node.in[i];
    if (!ref.defined()) continue;
    const bool mutated = static_cast<int>(i) < node.num_mutated;
    const auto operand = static_cast<int>(i);
    if (node.op->traits.waits) {
      list.push_back(access_to(program, roots, ref, AccessKind::awaited, operand));
    } else if (const std::optional<AccessKind> change = residency_change(program, node, i)) {
      list.push_back({.kind = *change,
                      .operand = operand,
                      .value = ref.value,
                      .root = roots.root(ref.value),
                      .bytes = {0, std::max<std::int64_t>(program.value(ref.value).bytes, 1)},
                      .writes = true});
    } else {
      list.push_back(access_to(program, roots, ref, mutated ? AccessKind::mutated : AccessKind::input, operand));
    }
  }
  const AccessKind output = node.accumulate ? AccessKind::accumulated : AccessKind::output;
  for (const std::size_t i : indices(node.out))
    if (node.out[i].defined()) list.push_back(access_to(program, roots, node.out[i], output, static_cast<int>(i)));
}

bool needs_no_data(const Program& program, const GraphNode& node, std::size_t input) {
  return node.op->traits.waits || residency_change(program, node, input).has_value();
}

Access read_at_end(const Program& program, const ByteRoots& roots, const TensorRef& ref, int operand) {
  return access_to(program, roots, ref, AccessKind::input, operand);
}

}  // namespace sherd::ir
