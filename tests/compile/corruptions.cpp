#include "tests/compile/corruptions.h"

#include <cctype>

#include "compile/ir/order.h"
#include "runtime/op/attr_text.h"

namespace sherd::testing {

namespace {

std::size_t any_node(const Program& program, Draw& draw) { return draw.below(program.nodes.size()); }

// ---- of order ----

bool move_past_a_dependency(Program& program, Draw& draw) {
  const Order order(program);
  const std::size_t node = any_node(program, draw), to = any_node(program, draw);
  if (order.may_move(node, to)) return false;
  move_node(program, node, to);
  return true;
}

bool drop_a_wait(Program& program, Draw& draw) {
  const std::size_t node = any_node(program, draw);
  if (!program.nodes[node].op->traits.waits) return false;
  program.nodes.erase(program.nodes.begin() + static_cast<std::ptrdiff_t>(node));
  compute_lifetimes(program);
  return true;
}

bool delay_a_wait(Program& program, Draw& draw) {
  const std::size_t node = any_node(program, draw);
  if (!program.nodes[node].op->traits.waits || node + 1 == program.nodes.size()) return false;
  move_node(program, node, node + 1 + draw.below(program.nodes.size() - node - 1));
  return true;
}

bool free_too_early(Program& program, Draw& draw) {
  const std::size_t node = any_node(program, draw);
  std::vector<ValueId>& frees = program.nodes[node].frees;
  if (frees.empty() || node == 0) return false;
  const std::size_t which = draw.below(frees.size());
  program.nodes[draw.below(node)].frees.push_back(frees[which]);
  frees.erase(frees.begin() + static_cast<std::ptrdiff_t>(which));
  return true;
}

bool forget_a_free(Program& program, Draw& draw) {
  std::vector<ValueId>& frees = program.nodes[any_node(program, draw)].frees;
  if (frees.empty()) return false;
  frees.erase(frees.begin() + static_cast<std::ptrdiff_t>(draw.below(frees.size())));
  return true;
}

bool free_twice(Program& program, Draw& draw) {
  const std::size_t node = any_node(program, draw);
  if (program.nodes[node].frees.empty()) return false;
  const ValueId value = program.nodes[node].frees.front();
  program.nodes[node + draw.below(program.nodes.size() - node)].frees.push_back(value);
  return true;
}

bool change_a_number(Program& program, Draw& draw) {
  std::vector<std::int32_t>& numbers = program.nodes[any_node(program, draw)].numbers;
  if (numbers.empty()) return false;
  numbers[draw.below(numbers.size())] += draw.below(2) ? 1 : -1;
  return true;
}

// ---- of nodes ----

bool drop_a_node(Program& program, Draw& draw) {
  const std::size_t node = any_node(program, draw);
  program.nodes.erase(program.nodes.begin() + static_cast<std::ptrdiff_t>(node));
  compute_lifetimes(program);
  return true;
}

bool repeat_a_node(Program& program, Draw& draw) {
  const std::size_t node = any_node(program, draw);
  const GraphNode again = program.nodes[node];
  const auto after = static_cast<std::ptrdiff_t>(node + 1 + draw.below(program.nodes.size() - node));
  program.nodes.insert(program.nodes.begin() + after, again);
  compute_lifetimes(program);
  return true;
}

bool change_the_row(Program& program, Draw& draw) {
  GraphNode& node = program.nodes[any_node(program, draw)];
  const GraphNode& other = program.nodes[any_node(program, draw)];
  if (other.op == node.op || other.op->attrs != node.op->attrs || other.in.size() != node.in.size() ||
      other.out.size() != node.out.size())
    return false;
  node.op = other.op;
  return true;
}

bool toggle_accumulate(Program& program, Draw& draw) {
  GraphNode& node = program.nodes[any_node(program, draw)];
  node.accumulate = !node.accumulate;
  return !node.out.empty();
}

bool forget_presence(Program& program, Draw& draw) {
  GraphNode& node = program.nodes[any_node(program, draw)];
  std::vector<ValueId>& list = draw.below(2) ? node.restores : node.releases;
  if (list.empty()) return false;
  list.clear();
  return true;
}

bool change_num_mutated(Program& program, Draw& draw) {
  GraphNode& node = program.nodes[any_node(program, draw)];
  if (node.num_mutated == 0 && draw.below(4)) return false;
  node.num_mutated += draw.below(2) ? 1 : -1;
  return true;
}

bool shrink_scratch(Program& program, Draw& draw) {
  const ValueId scratch = program.nodes[any_node(program, draw)].scratch;
  if (scratch == kNoValue) return false;
  program.value(scratch).bytes /= 2;
  return true;
}

// ---- of attributes ----

bool take_attributes_of_another(Program& program, Draw& draw) {
  GraphNode& node = program.nodes[any_node(program, draw)];
  const GraphNode& other = program.nodes[any_node(program, draw)];
  if (other.op != node.op || AttrsView(other.attrs) == AttrsView(node.attrs)) return false;
  node.attrs = other.attrs;
  return true;
}

// A digit of the text becomes another one, or true becomes false.
std::string altered(std::string text, Draw& draw) {
  const std::size_t start = draw.below(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t at = (start + i) % text.size();
    if (text.compare(at, 4, "true") == 0) return text.replace(at, 4, "false");
    if (text.compare(at, 5, "false") == 0) return text.replace(at, 5, "true");
    const bool in_name = at > 0 && (std::isalpha(static_cast<unsigned char>(text[at - 1])) || text[at - 1] == '#');
    if (!std::isdigit(static_cast<unsigned char>(text[at])) || in_name) continue;
    text[at] = text[at] == '9' ? '8' : static_cast<char>(text[at] + 1);
    return text;
  }
  return text;
}

bool change_an_attribute(Program& program, Draw& draw) {
  GraphNode& node = program.nodes[any_node(program, draw)];
  if (node.attrs.empty() || !node.op->attrs) return false;
  const std::string text = node.attrs.print(), other = altered(text, draw);
  try {
    parse_attrs(*node.op, text);
  } catch (const Error&) { return false; }
  if (other == text) return false;
  node.attrs = parse_attrs(*node.op, other);
  return true;
}

// ---- of refs ----

TensorRef* any_ref(Program& program, Draw& draw) {
  GraphNode& node = program.nodes[any_node(program, draw)];
  const std::size_t count = node.in.size() + node.out.size();
  if (count == 0) return nullptr;
  const std::size_t i = draw.below(count);
  TensorRef& ref = i < node.in.size() ? node.in[i] : node.out[i - node.in.size()];
  return ref.defined() ? &ref : nullptr;
}

bool take_another_tensor(Program& program, Draw& draw) {
  TensorRef* const ref = any_ref(program, draw);
  const TensorRef* const other = any_ref(program, draw);
  if (!ref || !other || *ref == *other || ref->shape != other->shape || ref->dtype != other->dtype) return false;
  *ref = *other;
  compute_lifetimes(program);
  return true;
}

bool name_another_value(Program& program, Draw& draw) {
  TensorRef* const ref = any_ref(program, draw);
  if (!ref) return false;
  ref->value = static_cast<ValueId>(draw.below(program.values.size() + 1));
  return true;
}

bool shift_a_ref(Program& program, Draw& draw) {
  TensorRef* const ref = any_ref(program, draw);
  if (!ref) return false;
  ref->offset += draw.below(2) ? 1 : -1;
  return true;
}

bool change_strides(Program& program, Draw& draw) {
  TensorRef* const ref = any_ref(program, draw);
  if (!ref || ref->strides.size() < 2) return false;
  const auto i = static_cast<int>(draw.below(static_cast<std::size_t>(ref->strides.size() - 1)));
  if (ref->strides[i] == ref->strides[i + 1]) return false;
  std::swap(ref->strides[i], ref->strides[i + 1]);
  return true;
}

bool change_the_shape(Program& program, Draw& draw) {
  TensorRef* const ref = any_ref(program, draw);
  if (!ref || ref->shape.size() == 0) return false;
  ref->shape[static_cast<int>(draw.below(static_cast<std::size_t>(ref->shape.size())))] += draw.below(2) ? 1 : -1;
  return true;
}

bool change_the_dtype(Program& program, Draw& draw) {
  TensorRef* const ref = any_ref(program, draw);
  if (!ref) return false;
  constexpr DType kTypes[] = {DType::f32, DType::i32, DType::bf16, DType::f16, DType::f64, DType::u8};
  const DType dtype = kTypes[draw.below(std::size(kTypes))];
  if (dtype == ref->dtype) return false;
  ref->dtype = dtype;
  return true;
}

bool swap_inputs(Program& program, Draw& draw) {
  GraphNode& node = program.nodes[any_node(program, draw)];
  if (node.in.size() < 2) return false;
  const std::size_t a = draw.below(node.in.size()), b = draw.below(node.in.size());
  if (node.in[a] == node.in[b]) return false;
  std::swap(node.in[a], node.in[b]);
  return true;
}

// ---- of what is left ----

bool leave_another_tensor(Program& program, Draw& draw) {
  const std::size_t count = program.results.size() + program.updates.size();
  if (count == 0) return false;
  const std::size_t i = draw.below(count);
  TensorRef& ref =
      i < program.results.size() ? program.results[i].local : program.updates[i - program.results.size()].result.local;
  const TensorRef* const other = any_ref(program, draw);
  if (!ref.defined() || !other || *other == ref || other->shape != ref.shape || other->dtype != ref.dtype) return false;
  ref = *other;
  compute_lifetimes(program);
  return true;
}

bool update_another_slot(Program& program, Draw& draw) {
  if (program.updates.empty()) return false;
  SlotUpdate& update = program.updates[draw.below(program.updates.size())];
  const int slot = static_cast<int>(draw.below(program.slots.size() + 1));
  if (slot == update.slot) return false;
  update.slot = slot;
  return true;
}

bool shrink_a_value(Program& program, Draw& draw) {
  Value& value = program.values[draw.below(program.values.size())];
  if (value.kind != ValueKind::temporary || value.bytes == 0) return false;
  value.bytes -= 1;
  return true;
}

}  // namespace

const std::vector<Corruption>& corruptions() {
  static const std::vector<Corruption> all{
      {"moves a node past what it depends on", true, move_past_a_dependency},
      {"drops a wait", true, drop_a_wait},
      {"delays a wait", true, delay_a_wait},
      {"frees a value too early", true, free_too_early},
      {"forgets a free", true, forget_a_free},
      {"frees a value twice", true, free_twice},
      {"changes a number", true, change_a_number},
      {"drops a node", false, drop_a_node},
      {"repeats a node", false, repeat_a_node},
      {"changes the row", false, change_the_row},
      {"turns = into += or back", false, toggle_accumulate},
      {"forgets what a node restores or releases", false, forget_presence},
      {"changes how many inputs are written", true, change_num_mutated},
      {"halves scratch", true, shrink_scratch},
      {"takes the attributes of another node", false, take_attributes_of_another},
      {"changes an attribute", false, change_an_attribute},
      {"takes another tensor", false, take_another_tensor},
      {"names another value", false, name_another_value},
      {"shifts a ref", false, shift_a_ref},
      {"swaps strides", false, change_strides},
      {"changes a shape", false, change_the_shape},
      {"changes a dtype", false, change_the_dtype},
      {"swaps inputs", false, swap_inputs},
      {"leaves another tensor", false, leave_another_tensor},
      {"updates another slot", false, update_another_slot},
      {"makes a value smaller", false, shrink_a_value},
  };
  return all;
}

}  // namespace sherd::testing
