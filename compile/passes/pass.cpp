#include "compile/passes/pass.h"

#include <algorithm>
#include <functional>
#include <ranges>
#include <utility>

#include <fmt/ranges.h>

#include "compile/ir/analysis/meaning.h"
#include "compile/ir/analysis/numbers.h"
#include "compile/ir/text/print.h"
#include "compile/ir/verify.h"
#include "compile/passes/budget/budget.h"
#include "compile/passes/dead_nodes.h"
#include "compile/passes/place_eager.h"
#include "compile/passes/place_waits.h"
#include "compile/passes/ssa.h"
#include "compile/passes/temporaries.h"
#include "runtime/op/copy/offload.h"
#include "runtime/tensor/indices.h"
#include "runtime/tensor/nearest.h"

namespace sherd::ir {

namespace {

// What Live names by index.
void check_tables(const Program& before, const Program& after) {
  check(before.modules == after.modules && before.layouts == after.layouts && before.settings == after.settings &&
            before.units == after.units &&
            std::ranges::equal(before.constants, after.constants | std::views::take(before.constants.size())),
        "the program has other modules, layouts, settings, units or constants than it had");
}

std::vector<const GraphNode*> calls_of(const Program& program) {
  std::vector<const GraphNode*> calls;
  for (const GraphNode& node : program.nodes)
    if (!lane_of(node).empty() && node.op != &op::copy_start) calls.push_back(&node);
  return calls;
}

// Ranks meet in their calls, but not in copies, so those of `after` are those of `before` in the same order; gathers
// may be missing, and come more often.
void check_calls(const Program& before, const Program& after) {
  const std::vector<const GraphNode*> recorded = calls_of(before), calls = calls_of(after);
  const auto is_gather = [](const GraphNode* call) { return !call->restores.empty(); };
  const auto is_same = [](const GraphNode* a, const GraphNode* b) { return a->op == b->op && a->attrs == b->attrs; };
  auto next = recorded.begin();
  for (const GraphNode* const call : calls) {
    const auto is_this = [&](const GraphNode* other) { return is_same(call, other); };
    if (is_gather(call) && std::ranges::any_of(recorded, is_this)) continue;
    next = std::find_if_not(next, recorded.end(), is_gather);
    if (next != recorded.end() && is_same(*next, call)) {
      ++next;
      continue;
    }
    Error error("a collective comes in another order than it was recorded in, and other ranks would wait");
    const auto at = static_cast<std::size_t>(call - after.nodes.data());
    error.add("node", fmt::format("{}: {}", at, describe_node(after, at)));
    throw error;
  }
  const auto missing = std::ranges::count_if(next, recorded.end(), std::not_fn(is_gather));
  check(missing == 0, "{} collectives are missing, for which other ranks would wait", missing);
}

void check_forms(std::span<const Pass> passes, Forms has) {
  const std::pair<Forms, std::string_view> kinds[] = {
      {form::split, "ssa"}, {form::placed, "place_eager"}, {form::waits, "place_waits"}};
  for (const Pass& pass : passes) {
    for (const auto& [bit, giver] : kinds)
      check((pass.needs & bit) == 0 || (has & bit) != 0,
            "the pass {} needs a program as {} leaves it; put it after that, or leave it out too", pass.name, giver);
    has = static_cast<Forms>((has & ~pass.ends) | pass.gives);
  }
}

// The same for passes that no context concerns.
Pass alone(std::string name, void (*run)(Program&), Forms gives = 0, Forms ends = 0) {
  return {std::move(name), [run](Program& program, PassContext&) { run(program); }, 0, gives, ends};
}

}  // namespace

// Scratch comes last of what makes values: how much a rank needs follows from the sizes of its local tensors, and the
// numbers of other values must not.
std::vector<Pass> standard_passes() {
  std::vector<Pass> passes;
  passes.push_back(alone("ssa", ssa, form::split, form::placed));
  passes.push_back({"dead_nodes", [](Program& program, PassContext& context) {
                      if (context.may_improve) drop_dead_nodes(program);
                    }});
  passes.push_back({"budget", fit_budget, form::split});
  passes.push_back({"place_eager",
                    [](Program& program, PassContext& context) { place_eager(program, context.may_improve); }, 0,
                    form::placed, form::split});
  passes.push_back(alone("accumulate_apart", accumulate_apart));
  passes.push_back(alone("scratch_as_values", scratch_as_values));
  passes.push_back(alone("place_waits", place_waits, form::waits));
  return passes;
}

std::vector<Pass> passes_named(std::string_view text) {
  std::vector<Pass> passes = standard_passes();
  std::vector<std::string> names;
  for (const Pass& pass : passes) names.push_back(pass.name);
  for (const auto part : std::views::split(text, ',')) {
    const std::string_view word(part.begin(), part.end());
    check(word.starts_with('-'), "\"{}\" in passes = {}: a minus takes a pass out, as in -budget, and all others run",
          word, text);
    const std::string_view name = word.substr(1);
    check(std::ranges::find(names, name) != names.end(), "passes = {}: there is no pass \"{}\"{}; there are {}", text,
          name, did_you_mean(name, names), fmt::join(names, ", "));
    std::erase_if(passes, [&](const Pass& pass) { return pass.name == name; });
  }
  check_forms(passes, 0);
  return passes;
}

void PassContext::finish(Program& program) const {
  PassContext undecided{.may_improve = may_improve};
  for (const Pass& pass : later) pass.run(program, undecided);
}

Footprint PassContext::outcome(Program program) const {
  finish(program);
  return footprint(program);
}

void run_passes(Program& program, std::span<const Pass> passes, PassContext& context) {
  verify(program);
  if (context.observe) context.observe("recorded", program);
  if (passes.empty()) return;
  const Program recorded = program;
  const Meanings meant(recorded);
  check_forms(passes, program.has_waits ? form::waits : 0);
  for (const std::size_t i : indices(passes)) {
    const Pass& pass = passes[i];
    try {
      context.later = passes.subspan(i + 1);
      pass.run(program, context);
      if (program != recorded) {  // which is proved
        verify(program);
        check_tables(recorded, program);
        check_same_meaning(meant, program);
        check_calls(recorded, program);
      }
      if (context.observe) context.observe(pass.name, program);
    } catch (Error& error) {
      error.add("pass", pass.name);
      throw;
    }
  }
}

void run_passes(Program& program, std::span<const Pass> passes) {
  PassContext nothing;
  run_passes(program, passes, nothing);
}

}  // namespace sherd::ir
