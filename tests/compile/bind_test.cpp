// A program that went through its text runs as the recorded one: same bits, same slots. What its names do not mean on
// this rank is an Error that says so.
#include "compile/run/bind.h"

#include <gtest/gtest.h>

#include "compile/passes/temporaries.h"
#include "runtime/op/core/step_names.h"
#include "tests/compile/training_step.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

TEST(Bind, ATinyStepFromItsTextIsBitwiseTheEagerOne) {
  TinyNet eager, captured;
  std::string written;
  for (int i = 0; i < 8; ++i) {
    eager.begin(i);
    captured.begin(i);
    const Tensor in[] = {TinyNet::x(i), TinyNet::y(i)};
    const Tensor expected = eager.train(in[0], in[1]).detach();
    const std::vector<Slot*> own = slots_of(captured);
    if (i < 2) {
      const auto step = [&]() -> std::vector<Tensor> { return {captured.train(in[0], in[1])}; };
      if (i == 0) step();
      else written = text(lower(recorded(in, step)));
    } else {
      const Graph graph = bind(parse(written), {.slots = own, .constants = {}});
      ASSERT_EQ(argument_mismatch(graph, in), "");
      ASSERT_EQ(slot_mismatch(graph), "");
      EXPECT_TRUE(same_bits(Interpreter(graph).run(in)[0], expected)) << i;
      EXPECT_EQ(text(lower(graph)), written);
    }
    expect_same_state(captured, eager);
    expect_same_grads(captured, eager);
  }
}

TEST(Bind, AGptStepFromItsTextIsBitwiseTheEagerOne) {
  expect_bound_step_is_eager([] { return std::make_unique<GptTraining>(); });
}

Program program_of(const std::function<Tensor()>& step) {
  return lower(recorded({}, [&]() -> std::vector<Tensor> { return {step()}; }));
}

TEST(Bind, SlotsOfOneNameAreToldApartByTheirAge) {
  Slot older("w"), younger("w");
  older.set(Tensor::scalar(2));
  younger.set(Tensor::scalar(3));
  // The younger one is used first.
  const Program program = program_of([&] { return younger.value() * 10.0 + older.value(); });
  EXPECT_EQ(program.slots[0].name, "w~2");
  EXPECT_EQ(program.slots[1].name, "w");
  const Graph graph = bind(parse(text(program)), {.slots = {&older, &younger}, .constants = {}});
  EXPECT_EQ(Interpreter(graph).run({})[0].item<float>(), 32.0f);
  Slot third("w");
  expect_error([&] { bind(program); }, {"2 of the 3 slots called \"w\"", "Names::slots"});
}

TEST(Bind, WhatIsMissingIsNamed) {
  const auto scaled = std::make_unique<Slot>("scale.factor");
  scaled->set(Tensor::scalar(2));
  const Program program = program_of([&] { return scaled->value() + 1.0; });
  Slot other("scale.facto");
  expect_error([&] { bind(program, {.slots = {&other}, .constants = {}}); },
               {"slot \"scale.factor\"", "not on this rank", "did you mean scale.facto?"});
  const auto with = [&](const std::function<void(Program&)>& change) {
    return [=] {
      Program changed = program;
      change(changed);
      bind(changed);
    };
  };
  expect_error(with([](Program& p) { p.layouts = {"{0: dp} on mesh(dp=2)"}; }),
               {"layout {0: dp} on mesh(dp=2)", "mesh"});
  expect_error(with([](Program& p) { p.units = {"blocks.7 full"}; }), {"\"blocks.7 full\"", "not on this rank"});
  expect_error(with([](Program& p) { p.settings = {{"blocks.7", "divides by 4"}}; }), {"\"blocks.7\"", "divides by 4"});
  expect_error(with([](Program& p) { p.nodes[0].frees = {0}; }), {"broken"});
}

TEST(Bind, UnitsAndSettingsAreFoundByName) {
  Slot w("w");
  w.set(Tensor::scalar(2));
  Program program = program_of([&] { return w.value() + 1.0; });
  const auto named = name_storage("blocks.0 full", Storage::allocate(8, MemoryCategory::unsharded));
  const auto setting = std::make_shared<StepSetting>();
  setting->text = "divides by 4";
  name_setting(setting, "blocks.0");
  program.units = {"blocks.0 full"};
  program.settings = {{"blocks.0", "divides by 2"}};
  const Graph graph = bind(program, {.slots = {&w}, .constants = {}});
  EXPECT_EQ(graph.live.units[0].get(), named->storage.get());
  EXPECT_EQ(setting_mismatch(graph), "blocks.0 is divides by 4, in the graph it is divides by 2");
  program.values.push_back({.kind = ValueKind::unit, .bytes = 16, .device = {}, .home = {}, .source = 0});
  expect_error([&] { bind(program, {.slots = {&w}, .constants = {}}); }, {"\"blocks.0 full\" has 8 bytes", "16"});
}

TEST(Bind, ConstantsAreMadeAnewOrFoundByTheirContents) {
  const Tensor small = drawn({4}, "small"), large = drawn({100}, "large");
  const Graph graph = recorded({}, [&]() -> std::vector<Tensor> { return {sum(large) + small}; });
  const Tensor expected = sum(large) + small;
  const Program program = parse(text(lower(graph)));
  EXPECT_NE(text(program).find("constant bytes "), std::string::npos);
  EXPECT_NE(text(program).find("constant hash "), std::string::npos);
  expect_error([&] { bind(program); }, {"f32[100] of 400 bytes", "Names::constants"});
  const Tensor other = drawn({100}, "other"), same = large + 0.0;
  expect_error([&] { bind(program, {.slots = {}, .constants = {other.storage()}}); }, {"Names::constants"});
  const Graph bound = bind(program, {.slots = {}, .constants = {other.storage(), same.storage()}});
  EXPECT_TRUE(same_bits(Interpreter(bound).run({})[0], expected));
  expect_error([&] { bind(graph.program, {.slots = {}, .constants = {same.storage()}}); }, {"does not carry constant"});
}

// Constants of equal contents are storages of their own: the step may write into one and read the other.
TEST(Bind, EqualConstantsStayApart) {
  const Tensor first = drawn({100}, "large"), second = first + 0.0;
  const Program program = parse(text(lower(recorded({}, [&]() -> std::vector<Tensor> { return {first * second}; }))));
  ASSERT_EQ(program.constants.size(), 2u);
  ASSERT_EQ(program.constants[0], program.constants[1]);
  expect_error([&] { bind(program, {.slots = {}, .constants = {first.storage()}}); }, {"Names::constants"});
  const Graph bound = bind(program, {.slots = {}, .constants = {first.storage(), second.storage()}});
  EXPECT_EQ(bound.live.constants[0].get(), first.storage().get());
  EXPECT_EQ(bound.live.constants[1].get(), second.storage().get());
}

TEST(Bind, AnArgumentIsNotReadBeyondItsEnd) {
  const Tensor x[] = {drawn({4}, "x")};
  Program program = lower(recorded(x, [&]() -> std::vector<Tensor> { return {x[0] + 1.0}; }));
  program.values[0].bytes = 32;
  expect_error([&] { bind(program); }, {"argument 0 has 16 bytes", "32"});
}

TEST(Bind, TheCheckOfTheSuiteSeesANameThatMeansSomethingElse) {
  Slot a("a"), b("b");
  a.set(Tensor::scalar(1));
  b.set(Tensor::scalar(2));
  Graph graph = recorded({}, [&]() -> std::vector<Tensor> { return {a.value() - b.value()}; });
  check_round_trip(graph);
  std::swap(graph.program.slots[0].name, graph.program.slots[1].name);
  expect_error([&] { check_round_trip(graph); }, {"do not mean what they meant", "slot b"});
  expect_error([&] { bind(graph.program, {.slots = {}, .constants = {}, .layouts = {nullptr}}); },
               {"Names::layouts has 1 layouts, the program 0"});
}

// Scratch may be a value, so that a plan knows of it; the executor takes none of its own then.
TEST(Bind, ScratchMayBeAValue) {
  const Tensor x[] = {drawn({2, 2, 8, 8}, "q")};
  const Graph graph = recorded(x, [&]() -> std::vector<Tensor> {
    return {scaled_dot_product_attention(transpose(x[0], 2, 3), x[0], x[0])};  // rows that are not dense are copied
  });
  Program planned = graph.program;
  scratch_as_values(planned);
  ASSERT_EQ(planned.values.size(), graph.program.values.size() + 1) << "attention asks for scratch here";
  EXPECT_GT(planned.values.back().bytes, 0);
  const Graph bound = bind(parse(text(planned)));
  EXPECT_TRUE(same_bits(Interpreter(bound).run(x)[0], Interpreter(graph).run(x)[0]));
  planned.values.back().bytes -= 1;
  expect_error([&] { bind(planned); }, {"scratch", "asks for"});
}

}  // namespace
}  // namespace sherd::testing
