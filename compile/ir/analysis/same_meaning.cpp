#include <algorithm>
#include <compare>
#include <unordered_set>
#include <utility>

#include "compile/ir/analysis/meaning.h"
#include "compile/ir/homes.h"
#include "compile/ir/text/print.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

struct MeaningHash {
  std::size_t operator()(const Meaning& m) const { return static_cast<std::size_t>(m.a); }
};
using Known = std::unordered_set<Meaning, MeaningHash>;

Known all_of(const Meanings& meanings) {
  Known known;
  for (const std::size_t v : indices(meanings.versions().all())) known.insert(meanings.of(static_cast<VersionId>(v)));
  for (std::size_t node = 0; node <= meanings.versions().end(); ++node)
    for (const Versions::Use& use : meanings.versions().uses_of(node)) known.insert(meanings.of(use));
  return known;
}

// From a version that the other program does not have, back over what it is made of, to a node that reads only what the
// other has: there the two part. -1: none.
int where_they_part(const Meanings& meanings, const Known& known, std::span<const VersionId> from) {
  std::vector<VersionId> open(from.begin(), from.end());
  std::unordered_set<VersionId> seen;
  while (!open.empty()) {
    const VersionId id = open.back();
    open.pop_back();
    if (known.contains(meanings.of(id)) || !seen.insert(id).second) continue;
    const int node = meanings.versions()[id].node;
    if (node < 0) continue;
    std::vector<VersionId> further;
    for (const Versions::Use& use : meanings.versions().uses_of(static_cast<std::size_t>(node)))
      if (use.access.reads && !known.contains(meanings.of(use)))
        for (const Part& part : meanings.versions().parts_of(use))
          if (!known.contains(meanings.of(part.version))) further.push_back(part.version);
    if (further.empty()) return node;
    open.insert(open.end(), further.begin(), further.end());
  }
  return -1;
}

// What tells the things left apart, of programs with equal tables: then equal places have equal names.
std::pair<int, int> place_of(const Program& program, const Meanings::Final& final) {
  if (final.value == kNoValue) return {-1, final.operand};
  const Value& value = program.value(final.value);
  return {static_cast<int>(value.kind), value.source};
}

void check_final(const Meanings& before, std::size_t i, const Meanings& after, const Meanings::Final& is) {
  const Meanings::Final& was = before.finals()[i];
  const Program& program = after.program();
  const bool is_other = place_of(before.program(), was) != place_of(program, is);
  if (was.meaning == is.meaning && !is_other) return;
  Error error(fmt::format("the program does not mean what it did: {} differs", before.name(was)));
  if (is_other) error.add("instead", after.name(is));
  if (const int node = where_they_part(after, all_of(before), after.versions_of(is)); node >= 0)
    error.add("first at node", fmt::format("{}: {}", node, describe_node(program, static_cast<std::size_t>(node))));
  throw error;
}

template <class List, class Same>
void check_lists(std::string_view what, const List& before, const List& after, const Same& same) {
  check(before.size() == after.size(), "the program does not mean what it did: it has {} {}, it had {}", after.size(),
        what, before.size());
  for (const std::size_t i : indices(before))
    check(same(before[i], after[i]), "the program does not mean what it did: {} {} differ", what, i);
}

template <class List>
void check_entries(std::string_view what, const List& before, const List& after) {
  check_lists(what, before, after, [](const auto& a, const auto& b) { return a == b; });
}

/// What a value demands of what it is bound to, and whether it leaves data there.
struct Outside {
  ValueKind kind;
  int source;
  std::int64_t bytes;
  bool is_absent, is_left_absent;
  friend auto operator<=>(const Outside&, const Outside&) = default;
};

std::vector<Outside> values_from_outside(const Program& program) {
  std::vector<bool> is_absent;  // by value, after the nodes so far
  for (const Value& v : program.values) is_absent.push_back(v.is_absent);
  for (const GraphNode& node : program.nodes) {
    for (const ValueId v : node.restores) is_absent[static_cast<std::size_t>(v)] = false;
    for (const ValueId v : node.releases) is_absent[static_cast<std::size_t>(v)] = true;
  }
  std::vector<Outside> all;
  for (std::size_t i = 0; i < is_absent.size(); ++i)
    if (const Value& v = program.values[i]; v.kind != ValueKind::temporary)
      all.push_back({v.kind, v.source, v.bytes, v.is_absent, is_absent[i]});
  return all;
}

// A home that the other program has not. It is written before it is read, or what is read means something else.
bool is_added(ValueKind kind, int source, const Program& before) {
  return kind == ValueKind::constant && source >= static_cast<int>(before.constants.size());
}

void check_homes(const Program& before, const Program& after) {
  check(after.constants.size() >= before.constants.size(),
        "the program does not mean what it did: it has {} constants, it had {}", after.constants.size(),
        before.constants.size());
  const std::vector<bool> are_homes = homes_of(after);
  for (std::size_t i = before.constants.size(); i < are_homes.size(); ++i)
    check(are_homes[i],
          "the program does not mean what it did: it has {} constants, it had {}, and constant {} is no "
          "home of what it moves out of memory",
          after.constants.size(), before.constants.size(), i);
}

// By kind and entry where values have other names; most passes leave them.
void check_values_from_outside(const Program& before, const Program& after) {
  std::vector<Outside> had = values_from_outside(before), has = values_from_outside(after);
  std::erase_if(has, [&](const Outside& value) { return is_added(value.kind, value.source, before); });
  if (had == has) return;
  std::ranges::sort(had);
  std::ranges::sort(has);
  check_entries("values from outside", had, has);
}

// What is no value: when the program may run, and the form of what it leaves.
void check_interface(const Program& before, const Program& after) {
  check_entries("arguments", before.arguments, after.arguments);
  check_entries("slots", before.slots, after.slots);
  check_lists("bindings", before.bindings, after.bindings, [](const Binding& a, const Binding& b) {
    return a.slot == b.slot && a.gradient == b.gradient && a.held_by_slot_only == b.held_by_slot_only &&
           a.kept == b.kept && a.tensor == b.tensor;
  });
  check_homes(before, after);
  check_values_from_outside(before, after);
  const auto same_form = [&](const GraphResult& a, const GraphResult& b) {
    if (a.shape != b.shape || a.layout != b.layout || a.local.defined() != b.local.defined()) return false;
    return !a.local.defined() || (a.local.dtype == b.local.dtype && a.local.shape == b.local.shape &&
                                  before.value(a.local.value).device == after.value(b.local.value).device);
  };
  check_lists("results", before.results, after.results, same_form);
  check_lists("updates", before.updates, after.updates, [&](const SlotUpdate& a, const SlotUpdate& b) {
    return a.slot == b.slot && a.gradient == b.gradient && same_form(a.result, b.result);
  });
  check_entries("layouts", before.layouts, after.layouts);
  check_entries("settings", before.settings, after.settings);
  check_entries("units", before.units, after.units);
  check_entries("constants", before.constants,
                std::vector(after.constants.begin(),
                            after.constants.begin() + static_cast<std::ptrdiff_t>(before.constants.size())));
  check(before.grad_enabled == after.grad_enabled, "the program does not mean what it did: its mode differs");
}

}  // namespace

void check_same_meaning(const Meanings& was, const Program& after) {
  check_interface(was.program(), after);
  const Meanings is(after);
  std::vector<Meanings::Final> left = is.finals();
  std::erase_if(left, [&](const Meanings::Final& final) {
    return final.value != kNoValue &&
           is_added(after.value(final.value).kind, after.value(final.value).source, was.program());
  });
  check_lists("things left", was.finals(), left, [](const Meanings::Final&, const Meanings::Final&) { return true; });
  for (const std::size_t i : indices(left)) check_final(was, i, is, left[i]);
}

}  // namespace sherd::ir
