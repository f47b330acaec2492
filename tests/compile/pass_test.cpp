// The list of passes between a recording and its replay: what compile() runs, and what becomes of a pass that is wrong.
#include "compile/passes/pass.h"

#include <gtest/gtest.h>

#include "compile/compile.h"
#include "compile/ir/analysis/order.h"
#include "compile/ir/text/print.h"
#include "compile/passes/ssa.h"
#include "runtime/op/rows/ops.h"
#include "tests/compile/hand_made.h"
#include "tests/compile/tiny_net.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using Mode = CompiledStep::Mode;

// $0 -> relu -> exp -> neg -> result
Program chain() {
  Program program = program_of(1, 3);
  add(program, op::relu, {whole(0)}, {whole(1)});
  add(program, op::exp, {whole(1)}, {whole(2)});
  add(program, op::neg, {whole(2)}, {whole(3)});
  finish(program, {whole(3)});
  return program;
}

void expect_refused(const Pass& pass, std::initializer_list<std::string_view> parts) {
  Program program = chain();
  const Pass harmless{"harmless", [](Program&, PassContext&) {}};
  expect_error([&] { run_passes(program, std::vector{harmless, pass}); }, parts);
}

TEST(Pass, WhatIsWrongWithAPassIsNamedWithTheNode) {
  expect_refused({"fuse", [](Program& p, PassContext&) { p.nodes[1].op = &op::sin; }},
                 {"result 0 differs", "1: %1 f32[2,2] = sin(%0)", "fuse"});
  expect_refused({"reorder", [](Program& p, PassContext&) { move_node(p, 2, 0); }},
                 {"read before anything was written", "0: %2 f32[2,2] = neg(%1)", "reorder"});
  expect_refused({"plan", [](Program& p, PassContext&) { p.nodes[2].frees.clear(); }},
                 {"value 2 is never freed", "plan"});
  expect_refused({"label", [](Program& p, PassContext&) { p.modules.emplace_back("blocks.0"); }},
                 {"other modules", "label"});
  expect_refused({"search", [](Program&, PassContext&) { fail("nothing fits"); }}, {"nothing fits", "search"});
  Program program = chain();
  program.nodes[0].frees = {1};
  expect_error([&] { run_passes(program, {}); }, {"used after it was freed", "1: "});  // the recording itself
}

TEST(Pass, RunInTheOrderOfTheList) {
  Program program = chain();
  std::string order;
  const auto noting = [&](const char* name) {
    return Pass{name, [&order, name](Program&, PassContext&) { order += name; }};
  };
  run_passes(program, std::vector{noting("a"), noting("b"), noting("c")});
  EXPECT_EQ(order, "abc");
}

TEST(Pass, ASecondTimeChangesNothing) {
  Program program = chain();
  run_passes(program, standard_passes());
  const Program once = program;
  run_passes(program, standard_passes());
  EXPECT_EQ(text(program), text(once));
}

// Program of the step net.train, as `passes` leave it, after three calls.
Program program_with(TinyNet& net, std::vector<Pass> passes) {
  CompileOptions options;
  options.passes = std::move(passes);
  auto step = compile_once([&](const Tensor& x, const Tensor& y) { return net.train(x, y); }, std::move(options));
  for (int i = 0; i < 3; ++i) step(TinyNet::x(i), TinyNet::y(i));
  EXPECT_EQ(step.mode(), Mode::replay) << step.why();
  return step.graph()->program;
}

TEST(Pass, AStepReplaysWhatTheListLeaves) {
  TinyNet recorded, standard, apart;
  const Program as_recorded = program_with(recorded, {}), usual = program_with(standard, standard_passes());
  const Program without_donation = program_with(apart, {{"ssa", [](Program& p, PassContext&) { ssa(p); }}});
  expect_same_state(standard, recorded);
  expect_same_state(apart, recorded);
  EXPECT_FALSE(as_recorded.has_waits);
  EXPECT_TRUE(usual.has_waits);
  EXPECT_EQ(to_string(usual), to_string(as_recorded)) << "nothing of this step waits, and donation is put back";
  EXPECT_GT(without_donation.values.size(), as_recorded.values.size());
}

std::string names_of(const std::vector<Pass>& passes) {
  std::string names;
  for (const Pass& pass : passes) names += pass.name + " ";
  return names;
}

TEST(Pass, NamesTakePassesOutOfTheList) {
  EXPECT_EQ(names_of(passes_named("")), names_of(standard_passes()));
  EXPECT_EQ(names_of(passes_named("-budget")),
            "ssa dead_nodes place_eager accumulate_apart scratch_as_values place_waits ");
  EXPECT_EQ(names_of(passes_named("-place_waits,-budget,-dead_nodes,-budget")),
            "ssa place_eager accumulate_apart scratch_as_values ");
  expect_error([] { passes_named("-buget"); },
               {"passes = -buget", "no pass \"buget\"", "did you mean budget?", "place_eager"});
  expect_error([] { passes_named("-dead_nodes,"); }, {"\"\" in passes = -dead_nodes,", "-budget"});
  expect_error([] { passes_named("budget"); }, {"\"budget\"", "a minus takes a pass out", "-budget"});
  expect_error([] { passes_named("-ssa"); }, {"the pass budget needs a program as ssa leaves it", "leave it out too"});
  EXPECT_EQ(names_of(passes_named("-ssa,-budget")),
            "dead_nodes place_eager accumulate_apart scratch_as_values place_waits ");
}

TEST(Pass, AStepIsTheSameWithoutAnyOfThem) {
  TinyNet all;
  program_with(all, standard_passes());
  for (const Pass& pass : standard_passes()) {
    SCOPED_TRACE(pass.name);
    TinyNet net;
    program_with(net, passes_named(pass.name == "ssa" ? "-ssa,-budget" : "-" + pass.name));
    expect_same_state(net, all);
  }
}

TEST(Pass, ASumThatItsRowCannotAddUpIsTwoNodes) {
  Slot w("w", true);
  w.set(drawn({3, 4}, "w"));
  const Tensor x = drawn({3, 4}, "x");
  for (const bool as_recorded : {true, false}) {
    CompileOptions options;
    if (as_recorded) options.passes.clear();
    auto step = compile_once(
        [&](const Tensor& scale) {
          w.clear_grad();
          for (int i = 0; i < 2; ++i) backward(sum(exp(w.value() * scale)));
          return w.grad();
        },
        options);
    const Tensor expected = step(x);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(step(x), expected)) << step.why();
    const bool has_sum = std::ranges::any_of(step.graph()->program.nodes, [](const GraphNode& node) {
      return node.accumulate && !node.op->traits.accumulates;
    });
    EXPECT_EQ(has_sum, as_recorded) << to_string(step.graph()->program);
  }
}

TEST(Pass, AStepWhosePassIsWrongIsNotReplayed) {
  TinyNet eager, captured;
  bool is_wrong = true;
  CompileOptions options;
  options.passes.push_back({"wrong", [&](Program& program, ir::PassContext&) {
                              if (is_wrong) move_node(program, program.nodes.size() - 1, 0);
                            }});
  auto step = compile_once([&](const Tensor& x, const Tensor& y) { return captured.train(x, y); }, options);
  step(TinyNet::x(0), TinyNet::y(0));
  expect_error([&] { step(TinyNet::x(1), TinyNet::y(1)); }, {"the captured graph is broken", "adamw", "wrong"});
  EXPECT_EQ(step.graph(), nullptr);
  is_wrong = false;
  for (int i = 2; i < 5; ++i) step(TinyNet::x(i), TinyNet::y(i));
  EXPECT_EQ(step.mode(), Mode::replay) << step.why();
  for (int i = 0; i < 5; ++i) eager.train(TinyNet::x(i), TinyNet::y(i));
  expect_same_state(captured, eager);
}

}  // namespace
}  // namespace sherd::testing
