#include "tests/compile/plan_corruptions.h"

#include <algorithm>
#include <utility>

#include "compile/ir/analysis/loans.h"
#include "compile/ir/rewrite.h"
#include "runtime/op/attrs/attr_text.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/wait_attrs.h"

namespace sherd::testing {

namespace {

constexpr std::size_t kNear = 40;  // nodes that may trade places

std::size_t draw_node(const Program& program, Dice& dice) { return dice.below(program.nodes.size()); }

bool leave(Program& program, Dice& dice) {
  if (dice.below(2)) settle(program);
  else compute_lifetimes(program);
  return true;
}

bool erase(Program& program, std::size_t node, Dice& dice) {
  program.nodes.erase(program.nodes.begin() + static_cast<std::ptrdiff_t>(node));
  return leave(program, dice);
}

// ---- independence ----

bool overlap(const TensorRef& a, const TensorRef& b) {
  if (!a.defined() || a.value != b.value) return false;
  const auto [a_first, a_last] = a.extent();
  const auto [b_first, b_last] = b.extent();
  const bool some_is_empty = a_first == a_last || b_first == b_last;
  return some_is_empty || (a_first < b_last && b_first < a_last);
}

bool touches(const GraphNode& node, const TensorRef& written) {
  const auto meets = [&](const TensorRef& ref) { return overlap(ref, written); };
  return std::ranges::any_of(node.in, meets) || std::ranges::any_of(node.out, meets);
}

bool writes_what_other_touches(const GraphNode& a, const GraphNode& b) {
  const auto is_touched = [&](const TensorRef& ref) { return touches(b, ref); };
  return std::ranges::any_of(a.out, is_touched) || std::any_of(a.in.begin(), a.in.begin() + a.num_mutated, is_touched);
}

// Rows with effects, collectives and waits have orders of their own.
bool is_plain(const GraphNode& node) { return !node.op->traits.effect && !node.op->traits.collective; }

// ---- corruptions ----

bool drop_wait(Program& program, Dice& dice) {
  const std::size_t node = draw_node(program, dice);
  return program.nodes[node].op->traits.waits && erase(program, node, dice);
}

bool drop_release(Program& program, Dice& dice) {
  const std::size_t node = draw_node(program, dice);
  return !program.nodes[node].releases.empty() && erase(program, node, dice);
}

bool swap_dependent(Program& program, Dice& dice) {
  const std::size_t first = draw_node(program, dice), second = first + 1 + dice.below(kNear);
  if (second >= program.nodes.size()) return false;
  GraphNode &a = program.nodes[first], &b = program.nodes[second];
  if (!is_plain(a) || !is_plain(b) || a.op->traits.waits || b.op->traits.waits || !writes_what_other_touches(a, b))
    return false;
  std::swap(a, b);
  return leave(program, dice);
}

// It is one of two that do the same: a budget has repeated it, or the recorded step has.
GraphNode* draw_clone(Program& program, Dice& dice) {
  GraphNode& node = program.nodes[draw_node(program, dice)];
  const auto does_the_same = [&](const GraphNode& other) {
    return &other != &node && other.op == node.op && other.module == node.module && other.attrs == node.attrs &&
           other.in.size() == node.in.size() && other.out.size() == node.out.size() &&
           std::ranges::equal(other.out, node.out, {}, &TensorRef::shape, &TensorRef::shape);
  };
  return is_plain(node) && !node.out.empty() && std::ranges::any_of(program.nodes, does_the_same) ? &node : nullptr;
}

bool change_input_of_clone(Program& program, Dice& dice) {
  GraphNode* const clone = draw_clone(program, dice);
  if (!clone || clone->in.empty()) return false;
  TensorRef& ref = clone->in[dice.below(clone->in.size())];
  const GraphNode& other = program.nodes[draw_node(program, dice)];
  const std::size_t count = other.in.size() + other.out.size();
  if (!ref.defined() || count == 0) return false;
  const std::size_t i = dice.below(count);
  const TensorRef instead = i < other.in.size() ? other.in[i] : other.out[i - other.in.size()];
  if (instead == ref || instead.shape != ref.shape || instead.dtype != ref.dtype) return false;
  ref = instead;
  return leave(program, dice);
}

bool change_attribute_of_clone(Program& program, Dice& dice) {
  GraphNode* const clone = draw_clone(program, dice);
  if (!clone || clone->attrs.empty() || !clone->op->attrs) return false;
  const std::string text = clone->attrs.print(), other = altered(text, dice);
  try {
    if (other == text || parse_attrs(*clone->op, text) != clone->attrs) return false;
  } catch (const Error&) { return false; }
  clone->attrs = parse_attrs(*clone->op, other);
  return true;
}

struct Life {
  std::size_t first = 0, last = 0;
  bool is_made = false;
};

Life life_of(const Program& program, ValueId value) {
  Life life;
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    const GraphNode& node = program.nodes[i];
    const auto names = [&](const TensorRef& ref) { return ref.value == value; };
    if (node.scratch != value && std::ranges::none_of(node.in, names) && std::ranges::none_of(node.out, names))
      continue;
    if (!std::exchange(life.is_made, true)) life.first = i;
    life.last = i;
  }
  return life;
}

// One of them moves into the bytes of the other, while both are in use.
bool overlap_places(Program& program, Dice& dice) {
  const auto moves = static_cast<ValueId>(dice.below(program.values.size()));
  const auto into = static_cast<ValueId>(dice.below(program.values.size()));
  const Value &a = program.value(moves), &b = program.value(into);
  if (moves == into || a.kind != ValueKind::temporary || b.kind != ValueKind::temporary || a.bytes > b.bytes ||
      a.bytes == 0)
    return false;
  const Life of_a = life_of(program, moves), of_b = life_of(program, into);
  if (!of_a.is_made || !of_b.is_made || std::max(of_a.first, of_b.first) >= std::min(of_a.last, of_b.last))
    return false;
  std::vector<ValueId> holder(program.values.size());
  for (std::size_t v = 0; v < holder.size(); ++v)
    holder[v] = static_cast<ValueId>(v) == moves ? into : static_cast<ValueId>(v);
  renumber(program, holder);
  return leave(program, dice);
}

// ---- copies to homes and back ----

bool is_copy(const GraphNode& node, CopyKind kind) {
  return node.op == &op::copy_start && node.attrs.as<OffloadAttrs>().kind == kind;
}

GraphNode* draw_copy(Program& program, Dice& dice, CopyKind kind) {
  std::vector<GraphNode*> all;
  for (GraphNode& node : program.nodes)
    if (is_copy(node, kind) && node.in.size() == 2) all.push_back(&node);
  return all.empty() ? nullptr : all[dice.below(all.size())];
}

bool fetch_from_another_home(Program& program, Dice& dice) {
  GraphNode* const a = draw_copy(program, dice, CopyKind::fetch);
  GraphNode* const b = draw_copy(program, dice, CopyKind::fetch);
  if (!a || a->in[1].value == b->in[1].value || a->in[1].shape != b->in[1].shape) return false;
  a->in[1] = b->in[1];
  return leave(program, dice);
}

bool drop_eviction(Program& program, Dice& dice) {
  const GraphNode* const copy = draw_copy(program, dice, CopyKind::evict);
  return copy && erase(program, static_cast<std::size_t>(copy - program.nodes.data()), dice);
}

bool fetch_before_eviction(Program& program, Dice& dice) {
  GraphNode* const fetch = draw_copy(program, dice, CopyKind::fetch);
  if (!fetch) return false;
  for (GraphNode& node : program.nodes)
    if (is_copy(node, CopyKind::evict) && node.in[0].value == fetch->in[1].value) {
      std::swap(node, *fetch);
      return leave(program, dice);
    }
  return false;
}

bool drop_fetch(Program& program, Dice& dice) {
  const GraphNode* const copy = draw_copy(program, dice, CopyKind::fetch);
  return copy && erase(program, static_cast<std::size_t>(copy - program.nodes.data()), dice);
}

// What is copied there between an eviction and its fetch comes back in its place.
bool share_home(Program& program, Dice& dice) {
  const GraphNode* const a = draw_copy(program, dice, CopyKind::evict);
  const GraphNode* const b = draw_copy(program, dice, CopyKind::evict);
  if (!a || a->in[0].value == b->in[0].value || a->in[0].shape != b->in[0].shape) return false;
  const ValueId from = a->in[0].value, to = b->in[0].value;
  const Life of_a = life_of(program, from), of_b = life_of(program, to);
  if (std::max(of_a.first, of_b.first) >= std::min(of_a.last, of_b.last)) return false;
  for (GraphNode& node : program.nodes)
    for (TensorRef& ref : node.in)
      if (ref.value == from) ref.value = to;
  return leave(program, dice);
}

}  // namespace

bool are_independent(const GraphNode& a, const GraphNode& b) {
  return is_plain(a) && is_plain(b) && !writes_what_other_touches(a, b) && !writes_what_other_touches(b, a);
}

const std::vector<Corruption>& plan_corruptions() {
  static const std::vector<Corruption> all{
      {"drops a wait", true, drop_wait},
      {"drops a release", true, drop_release},
      {"swaps nodes that depend on each other", false, swap_dependent},
      {"changes an input of a repeated node", false, change_input_of_clone},
      {"changes an attribute of a repeated node", false, change_attribute_of_clone},
      {"puts values of one time in one place", false, overlap_places},
      {"brings back what went to another home", false, fetch_from_another_home},
      {"drops a copy to a home", false, drop_eviction},
      {"brings back what has not gone yet", false, fetch_before_eviction},
      {"drops a copy from a home", false, drop_fetch},
      {"copies two values to one home", false, share_home},
  };
  return all;
}

// The work of a queue that a wait asks for comes with all that was handed out before it.
Program with_late_queues(const Program& program) {
  Program late = program;
  late.nodes.clear();
  std::vector<GraphNode> open;
  const auto run = [&](std::size_t count) {
    const auto end = open.begin() + static_cast<std::ptrdiff_t>(count);
    std::move(open.begin(), end, std::back_inserter(late.nodes));
    open.erase(open.begin(), end);
  };
  std::vector<ValueId> freed_first;
  for (GraphNode node : program.nodes) {
    if (node.op->traits.waits) {
      const bool to_write = node.attrs.as<WaitAttrs>().to_write;
      for (std::size_t i = open.size(); i > 0; --i) {
        const auto is_meant = [&](const TensorRef& ref) {
          const GraphNode& work = open[i - 1];
          const auto names = [&](const TensorRef& used) { return used.defined() && used.value == ref.value; };
          const auto read = to_write ? work.in.end() : work.in.begin() + work.num_mutated;
          return std::any_of(work.in.begin(), read, names) || std::ranges::any_of(work.out, names) ||
                 std::ranges::count(work.restores, ref.value) > 0;
        };
        if (std::ranges::none_of(node.in, is_meant)) continue;
        run(i);
        break;
      }
    } else if (!queue_of(node).name.empty()) {
      std::vector<ValueId>& frees = late.nodes.empty() ? freed_first : late.nodes.back().frees;
      frees.insert(frees.end(), node.frees.begin(), node.frees.end());
      node.frees.clear();
      open.push_back(std::move(node));
      continue;
    }
    late.nodes.push_back(std::move(node));
  }
  run(open.size());
  late.nodes.back().frees.insert(late.nodes.back().frees.end(), freed_first.begin(), freed_first.end());
  return late;
}

}  // namespace sherd::testing
