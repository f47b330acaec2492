#include "tests/compile/corruptions.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "compile/ir/analysis/order.h"
#include "runtime/op/attrs/attr_text.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/wait_attrs.h"

namespace sherd::testing {

namespace {

std::size_t any_node(const Program& program, Dice& dice) { return dice.below(program.nodes.size()); }

// ---- of order ----

bool move_past_a_dependency(Program& program, Dice& dice) {
  const Order order(program);
  const std::size_t node = any_node(program, dice), to = any_node(program, dice);
  if (order.may_move(node, to)) return false;
  move_node(program, node, to);
  return true;
}

bool drop_a_wait(Program& program, Dice& dice) {
  const std::size_t node = any_node(program, dice);
  if (!program.nodes[node].op->traits.waits) return false;
  program.nodes.erase(program.nodes.begin() + static_cast<std::ptrdiff_t>(node));
  compute_lifetimes(program);
  return true;
}

bool delay_a_wait(Program& program, Dice& dice) {
  const std::size_t node = any_node(program, dice);
  if (!program.nodes[node].op->traits.waits || node + 1 == program.nodes.size()) return false;
  move_node(program, node, node + 1 + dice.below(program.nodes.size() - node - 1));
  return true;
}

bool free_too_early(Program& program, Dice& dice) {
  const std::size_t node = any_node(program, dice);
  std::vector<ValueId>& frees = program.nodes[node].frees;
  if (frees.empty() || node == 0) return false;
  const std::size_t which = dice.below(frees.size());
  program.nodes[dice.below(node)].frees.push_back(frees[which]);
  frees.erase(frees.begin() + static_cast<std::ptrdiff_t>(which));
  return true;
}

bool forget_a_free(Program& program, Dice& dice) {
  std::vector<ValueId>& frees = program.nodes[any_node(program, dice)].frees;
  if (frees.empty()) return false;
  frees.erase(frees.begin() + static_cast<std::ptrdiff_t>(dice.below(frees.size())));
  return true;
}

bool free_twice(Program& program, Dice& dice) {
  const std::size_t node = any_node(program, dice);
  if (program.nodes[node].frees.empty()) return false;
  const ValueId value = program.nodes[node].frees.front();
  program.nodes[node + dice.below(program.nodes.size() - node)].frees.push_back(value);
  return true;
}

bool change_a_number(Program& program, Dice& dice) {
  std::vector<std::int32_t>& numbers = program.nodes[any_node(program, dice)].numbers;
  if (numbers.empty()) return false;
  numbers[dice.below(numbers.size())] += dice.below(2) ? 1 : -1;
  return true;
}

// ---- of nodes ----

bool drop_a_node(Program& program, Dice& dice) {
  const std::size_t node = any_node(program, dice);
  program.nodes.erase(program.nodes.begin() + static_cast<std::ptrdiff_t>(node));
  compute_lifetimes(program);
  return true;
}

bool repeat_a_node(Program& program, Dice& dice) {
  const std::size_t node = any_node(program, dice);
  const GraphNode again = program.nodes[node];
  const auto after = static_cast<std::ptrdiff_t>(node + 1 + dice.below(program.nodes.size() - node));
  program.nodes.insert(program.nodes.begin() + after, again);
  compute_lifetimes(program);
  return true;
}

bool change_the_row(Program& program, Dice& dice) {
  GraphNode& node = program.nodes[any_node(program, dice)];
  const GraphNode& other = program.nodes[any_node(program, dice)];
  if (other.op == node.op || other.op->attrs != node.op->attrs || other.in.size() != node.in.size() ||
      other.out.size() != node.out.size())
    return false;
  node.op = other.op;
  return true;
}

bool toggle_accumulate(Program& program, Dice& dice) {
  GraphNode& node = program.nodes[any_node(program, dice)];
  node.accumulate = !node.accumulate;
  return !node.out.empty();
}

bool forget_presence(Program& program, Dice& dice) {
  GraphNode& node = program.nodes[any_node(program, dice)];
  std::vector<ValueId>& list = dice.below(2) ? node.restores : node.releases;
  if (list.empty()) return false;
  list.clear();
  return true;
}

bool change_num_mutated(Program& program, Dice& dice) {
  GraphNode& node = program.nodes[any_node(program, dice)];
  if (node.num_mutated == 0 && dice.below(4)) return false;
  node.num_mutated += dice.below(2) ? 1 : -1;
  return true;
}

bool shrink_scratch(Program& program, Dice& dice) {
  const ValueId scratch = program.nodes[any_node(program, dice)].scratch;
  if (scratch == kNoValue) return false;
  program.value(scratch).bytes /= 2;
  return true;
}

// ---- of attributes ----

bool take_attributes_of_another(Program& program, Dice& dice) {
  GraphNode& node = program.nodes[any_node(program, dice)];
  const GraphNode& other = program.nodes[any_node(program, dice)];
  if (other.op != node.op || AttrsView(other.attrs) == AttrsView(node.attrs)) return false;
  node.attrs = other.attrs;
  return true;
}

// What no text names is no mistake of a text.
bool change_an_attribute(Program& program, Dice& dice) {
  GraphNode& node = program.nodes[any_node(program, dice)];
  if (node.attrs.empty() || !node.op->attrs) return false;
  const std::string text = node.attrs.print(), other = altered(text, dice);
  try {
    parse_attrs(*node.op, text);
  } catch (const Error&) { return false; }
  if (other == text) return false;
  node.attrs = parse_attrs(*node.op, other);
  return true;
}

// ---- of refs ----

TensorRef* any_ref(Program& program, Dice& dice) {
  GraphNode& node = program.nodes[any_node(program, dice)];
  const std::size_t count = node.in.size() + node.out.size();
  if (count == 0) return nullptr;
  const std::size_t i = dice.below(count);
  TensorRef& ref = i < node.in.size() ? node.in[i] : node.out[i - node.in.size()];
  return ref.defined() ? &ref : nullptr;
}

bool take_another_tensor(Program& program, Dice& dice) {
  TensorRef* const ref = any_ref(program, dice);
  const TensorRef* const other = any_ref(program, dice);
  if (!ref || !other || *ref == *other || ref->shape != other->shape || ref->dtype != other->dtype) return false;
  *ref = *other;
  compute_lifetimes(program);
  return true;
}

bool name_another_value(Program& program, Dice& dice) {
  TensorRef* const ref = any_ref(program, dice);
  if (!ref) return false;
  ref->value = static_cast<ValueId>(dice.below(program.values.size() + 1));
  return true;
}

bool shift_a_ref(Program& program, Dice& dice) {
  TensorRef* const ref = any_ref(program, dice);
  if (!ref) return false;
  ref->offset += dice.below(2) ? 1 : -1;
  return true;
}

bool change_strides(Program& program, Dice& dice) {
  TensorRef* const ref = any_ref(program, dice);
  if (!ref || ref->strides.size() < 2) return false;
  const auto i = static_cast<int>(dice.below(static_cast<std::size_t>(ref->strides.size() - 1)));
  if (ref->strides[i] == ref->strides[i + 1]) return false;
  std::swap(ref->strides[i], ref->strides[i + 1]);
  return true;
}

bool change_the_shape(Program& program, Dice& dice) {
  TensorRef* const ref = any_ref(program, dice);
  if (!ref || ref->shape.size() == 0) return false;
  ref->shape[static_cast<int>(dice.below(static_cast<std::size_t>(ref->shape.size())))] += dice.below(2) ? 1 : -1;
  return true;
}

bool change_the_dtype(Program& program, Dice& dice) {
  TensorRef* const ref = any_ref(program, dice);
  if (!ref) return false;
  constexpr DType kTypes[] = {DType::f32, DType::i32, DType::bf16, DType::f16, DType::f64, DType::u8};
  const DType dtype = kTypes[dice.below(std::size(kTypes))];
  if (dtype == ref->dtype) return false;
  ref->dtype = dtype;
  return true;
}

bool swap_inputs(Program& program, Dice& dice) {
  GraphNode& node = program.nodes[any_node(program, dice)];
  if (node.in.size() < 2) return false;
  const std::size_t a = dice.below(node.in.size()), b = dice.below(node.in.size());
  if (node.in[a] == node.in[b]) return false;
  std::swap(node.in[a], node.in[b]);
  return true;
}

// ---- of what is left ----

bool leave_another_tensor(Program& program, Dice& dice) {
  const std::size_t count = program.results.size() + program.updates.size();
  if (count == 0) return false;
  const std::size_t i = dice.below(count);
  TensorRef& ref =
      i < program.results.size() ? program.results[i].local : program.updates[i - program.results.size()].result.local;
  const TensorRef* const other = any_ref(program, dice);
  if (!ref.defined() || !other || *other == ref || other->shape != ref.shape || other->dtype != ref.dtype) return false;
  ref = *other;
  compute_lifetimes(program);
  return true;
}

bool update_another_slot(Program& program, Dice& dice) {
  if (program.updates.empty()) return false;
  SlotUpdate& update = program.updates[dice.below(program.updates.size())];
  const int slot = static_cast<int>(dice.below(program.slots.size() + 1));
  if (slot == update.slot) return false;
  update.slot = slot;
  return true;
}

bool shrink_a_value(Program& program, Dice& dice) {
  Value& value = program.values[dice.below(program.values.size())];
  if (value.kind != ValueKind::temporary || value.bytes == 0) return false;
  value.bytes -= 1;
  return true;
}

// Strides of a dense tensor whose dims lie the other way round.
Strides reversed_strides(const Shape& shape) {
  Strides strides = shape;
  std::int64_t step = 1;
  for (int d = 0; d < shape.size(); ++d) step *= std::exchange(strides[d], step);
  return strides;
}

// The writer and all readers of a value agree on another order of its dims, in which the kernel does not write.
bool change_strides_of_all(Program& program, Dice& dice) {
  const GraphNode& writer = program.nodes[any_node(program, dice)];
  if (writer.out.empty() || writer.op->traits.any_strides || writer.op->traits.effect) return false;
  const TensorRef made = writer.out[0];
  const TensorRef turned{made.value, made.dtype, made.shape, reversed_strides(made.shape), made.offset};
  if (turned.strides == made.strides || program.value(made.value).kind != ValueKind::temporary) return false;
  for (GraphNode& node : program.nodes) {
    for (TensorRef& ref : node.in)
      if (ref == made) ref = turned;
    for (TensorRef& ref : node.out)
      if (ref == made) ref = turned;
  }
  return true;
}

bool writes_part_of(const Program& program, const GraphNode& node, ValueId value) {
  return std::any_of(node.out.begin(), node.out.end(), [&](const TensorRef& out) {
    const auto [first, last] = out.extent();
    return out.value == value && last - first < program.value(value).bytes;
  });
}

bool swap_partial_writes(Program& program, Dice& dice) {
  const std::size_t a = any_node(program, dice), b = any_node(program, dice);
  if (a == b || program.nodes[a].out.empty()) return false;
  const ValueId value = program.nodes[a].out[0].value;
  if (!writes_part_of(program, program.nodes[a], value) || !writes_part_of(program, program.nodes[b], value))
    return false;
  std::swap(program.nodes[a], program.nodes[b]);
  compute_lifetimes(program);
  return true;
}

bool toggle_to_write(Program& program, Dice& dice) {
  GraphNode& node = program.nodes[any_node(program, dice)];
  if (!node.op->traits.waits) return false;
  node.attrs = WaitAttrs{!node.attrs.as<WaitAttrs>().to_write};
  compute_lifetimes(program);
  return true;
}

// ---- of tables, guards and values ----

std::size_t size_of_table(const Program& program, ValueKind kind) {
  switch (kind) {
    case ValueKind::argument: return program.arguments.size();
    case ValueKind::unit: return program.units.size();
    case ValueKind::constant: return program.constants.size();
    default: return program.bindings.size();
  }
}

bool name_another_source(Program& program, Dice& dice) {
  Value& value = program.values[dice.below(program.values.size())];
  if (value.kind == ValueKind::temporary) return false;
  const auto source = static_cast<int>(dice.below(size_of_table(program, value.kind) + 1));
  return source != std::exchange(value.source, source);
}

bool swap_sources(Program& program, Dice& dice) {
  Value& a = program.values[dice.below(program.values.size())];
  Value& b = program.values[dice.below(program.values.size())];
  if (a.kind != b.kind || a.source == b.source) return false;
  std::swap(a.source, b.source);
  return true;
}

bool move_to_another_device(Program& program, Dice& dice) {
  Value& value = program.values[dice.below(program.values.size())];
  value.device = dice.below(2) ? Device::meta() : Device::cuda(static_cast<std::uint8_t>(dice.below(256)));
  return true;
}

// What has a place is put there only if it fits.
bool take_another_place(Program& program, Dice& dice) {
  Value& value = program.values[dice.below(program.values.size())];
  value.place = static_cast<ValueId>(dice.below(program.values.size() + 1));
  return true;
}

bool toggle_presence(Program& program, Dice& dice) {
  Value& value = program.values[dice.below(program.values.size())];
  if (value.kind != ValueKind::unit) return false;
  value.is_absent = !value.is_absent;
  return true;
}

std::string* any_name(Program& program, Dice& dice) {
  const auto one_of = [&](auto& list) { return list.empty() ? nullptr : &list[dice.below(list.size())]; };
  switch (dice.below(4)) {
    case 0: return one_of(program.units);
    case 1: return one_of(program.layouts);
    case 2:
      if (GraphSetting* const setting = one_of(program.settings))
        return dice.below(2) ? &setting->name : &setting->text;
      return nullptr;
    default:
      if (GraphSlot* const slot = one_of(program.slots)) return &slot->name;
      return nullptr;
  }
}

bool change_a_name(Program& program, Dice& dice) {
  std::string* const name = any_name(program, dice);
  const std::string* const other = any_name(program, dice);
  if (!name) return false;
  if (other && *other != *name && dice.below(2)) *name = *other;
  else *name += "~2";
  return true;
}

bool change_a_constant(Program& program, Dice& dice) {
  if (program.constants.empty()) return false;
  ++program.constants[dice.below(program.constants.size())].hash;
  return true;
}

bool change_a_slot(Program& program, Dice& dice) {
  if (program.slots.empty()) return false;
  constexpr bool GraphSlot::* kFlags[] = {&GraphSlot::requires_grad, &GraphSlot::leaves_requires_grad,
                                          &GraphSlot::had_value, &GraphSlot::had_grad, &GraphSlot::drops_grad_first};
  bool& flag = program.slots[dice.below(program.slots.size())].*kFlags[dice.below(std::size(kFlags))];
  flag = !flag;
  return true;
}

bool change_a_guard(Program& program, Dice& dice) {
  const std::size_t count = program.arguments.size() + program.bindings.size();
  if (count == 0) return false;
  const std::size_t i = dice.below(count);
  const bool is_argument = i < program.arguments.size();
  TensorGuard& guard =
      is_argument ? program.arguments[i].tensor : program.bindings[i - program.arguments.size()].tensor;
  switch (dice.below(is_argument ? 6 : 5)) {
    case 0: guard.dtype = guard.dtype == DType::bf16 ? DType::f16 : DType::bf16; break;
    case 1: guard.shape.push_back(1); break;
    case 2: ++guard.offset; break;
    case 3: guard.device = Device::cuda(0); break;
    case 4: guard.global.push_back(1); break;
    default: program.arguments[i].shares = static_cast<int>(dice.below(program.arguments.size() + 1)); break;
  }
  return true;
}

}  // namespace

std::string altered(std::string text, Dice& dice) {
  const std::size_t start = dice.below(text.size());
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
      {"forgets what a node restores or releases", true, forget_presence},
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
      {"lays a value out otherwise, for all", true, change_strides_of_all},
      {"swaps writes of parts of a value", true, swap_partial_writes},
      {"waits for readers, or no longer", true, toggle_to_write},
      {"names another entry of a table", false, name_another_source},
      {"swaps two entries of a table", false, swap_sources},
      {"moves a value to another device", false, move_to_another_device},
      {"takes another place", true, take_another_place},
      {"says that data is absent, or is not", false, toggle_presence},
      {"changes a name", false, change_a_name},
      {"changes a constant", false, change_a_constant},
      {"changes what a slot was", false, change_a_slot},
      {"changes a guard", false, change_a_guard},
  };
  return all;
}

}  // namespace sherd::testing
