// What has a meaning and what has none.
#include "compile/ir/analysis/meaning.h"

#include <gtest/gtest.h>

#include <functional>

#include "compile/ir/verify.h"
#include "compile/passes/place_eager.h"
#include "compile/passes/ssa.h"
#include "compile/passes/temporaries.h"
#include "runtime/op/rows/random_attrs.h"
#include "tests/compile/hand_made.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

Program chain(const Op& first, const Op& second) {
  Program program = program_of(1, 3);
  add(program, first, {whole(0)}, {whole(1)});
  add(program, second, {whole(1)}, {whole(2)});
  add(program, op::neg, {whole(2)}, {whole(3)});
  finish(program, {whole(3)});
  return program;
}

TEST(Meaning, TheRowThatDiffersIsNamed) {
  const Program before = chain(op::relu, op::exp);
  check_same_meaning(before, before);
  expect_error([&] { check_same_meaning(before, chain(op::relu, op::sin)); },
               {"does not mean what it did: result 0 differs", "first at node", "1: %1 f32[2,2] = sin(%0)"});
}

TEST(Meaning, PlacesCopiesAndRepetitionHaveNone) {
  const Program before = chain(op::relu, op::exp);
  Program in_place = program_of(1, 1);
  for (const Op* row : {&op::relu, &op::exp, &op::neg})
    add(in_place, *row, {in_place.nodes.empty() ? whole(0) : whole(1)}, {whole(1)});
  finish(in_place, {whole(1)});
  check_same_meaning(before, in_place);
  ssa(in_place);
  EXPECT_EQ(in_place.values.size(), 4u);
  check_same_meaning(before, in_place);
  place_eager(in_place);
  EXPECT_EQ(in_place.values.size(), 2u);

  Program again = program_of(1, 5);  // relu twice, and a copy
  add(again, op::relu, {whole(0)}, {whole(1)});
  add(again, op::relu, {whole(0)}, {whole(2)});
  add(again, op::copy, {whole(2)}, {whole(3)});
  add(again, op::exp, {whole(3)}, {whole(4)});
  add(again, op::neg, {whole(4)}, {whole(5)});
  finish(again, {whole(5)});
  check_same_meaning(before, again);
}

TEST(Meaning, ATensorIsWhatIsSeenOfIt) {
  const auto reading = [](const TensorRef& ref) {
    Program program = program_of(1, 2);
    add(program, op::relu, {whole(0)}, {whole(1)});
    add(program, op::exp, {ref}, {{2, DType::f32, ref.shape, contiguous_strides(ref.shape), 0}});
    finish(program, {{2, DType::f32, ref.shape, contiguous_strides(ref.shape), 0}});
    return program;
  };
  const TensorRef transposed{1, DType::f32, {2, 2}, {1, 2}, 0};
  EXPECT_THROW(check_same_meaning(reading(whole(1)), reading(transposed)), Error);
  EXPECT_THROW(check_same_meaning(reading(row_of(1, 0)), reading(row_of(1, 1))), Error);
  check_same_meaning(reading(row_of(1, 1)), reading(row_of(1, 1)));
}

TEST(Meaning, ASumIsARowAndWhatItIsAddedTo) {
  Program sum = program_of(2, 1);
  add(sum, op::relu, {whole(0)}, {whole(2)});
  add(sum, op::exp, {whole(1)}, {whole(2)}).accumulate = true;
  finish(sum, {whole(2)});
  Program apart = sum;
  accumulate_apart(apart);
  EXPECT_EQ(apart.nodes.size(), 3u);
  verify(apart);
  check_same_meaning(sum, apart);
  Program twice = apart;
  twice.nodes.push_back(twice.nodes.back());
  EXPECT_THROW(check_same_meaning(sum, twice), Error);
}

TEST(Meaning, BytesWrittenIntoArgumentsCount) {
  const auto writing = [](bool writes) {
    Program program = program_of(1, 1);
    add(program, op::relu, {whole(0)}, {whole(1)});
    if (writes) add(program, op::exp, {row_of(0, 0)}, {row_of(0, 1)});
    finish(program, {whole(1)});
    return program;
  };
  expect_error([&] { check_same_meaning(writing(true), writing(false)); }, {"the bytes of argument 0 differs"});
}

TEST(Meaning, RandomRowsMeanKeyAndIndex) {
  const auto drawing = [](const RandomAttrs& attrs) {
    Program program = program_of(0, 1);
    add(program, op::random_normal, {}, {whole(0)}, attrs);
    finish(program, {whole(0)});
    return program;
  };
  const RandomAttrs attrs{.shape = kSquare, .key = 7};
  check_same_meaning(drawing(attrs), drawing(attrs));
  RandomAttrs other = attrs;
  other.key = 8;
  EXPECT_THROW(check_same_meaning(drawing(attrs), drawing(other)), Error);
  other = attrs;
  other.first = 4;
  EXPECT_THROW(check_same_meaning(drawing(attrs), drawing(other)), Error);
}

// Bytes that are read with others, or left at the end, mean what was written there and how it lies.
TEST(Meaning, HowElementsLieCounts) {
  const auto copying = [](const Strides& strides, bool is_kept) {
    Program program = program_of(1, 2);
    if (is_kept) {
      program.values[1].kind = ValueKind::constant;
      program.values[1].source = 0;
      program.constants.emplace_back();
    } else {
      program.values[1].bytes = 32;
    }
    add(program, op::copy, {whole(0)}, {{1, DType::f32, kSquare, strides, 0}});
    if (!is_kept) add(program, op::relu, {row_of(0, 0)}, {{1, DType::f32, {4}, {1}, 4}}).in[0].shape = {4};
    const TensorRef seen{1, DType::f32, {is_kept ? 4 : 8}, {1}, 0};
    program.values[2].bytes = is_kept ? 16 : 32;
    add(program, op::relu, {seen}, {whole(2, seen.shape)});
    finish(program, {whole(2, seen.shape)});
    if (is_kept) {
      program.nodes.pop_back();
      program.values.pop_back();
      program.results.clear();
      compute_lifetimes(program);
      write_numbers(program);
    }
    verify(program);
    return program;
  };
  for (const bool is_kept : {false, true}) {
    check_same_meaning(copying({2, 1}, is_kept), copying({2, 1}, is_kept));
    EXPECT_THROW(check_same_meaning(copying({2, 1}, is_kept), copying({1, 2}, is_kept)), Error) << is_kept;
  }
}

// A strided write leaves what was written before it between its elements: whoever reads all of them reads both.
TEST(Meaning, BytesBetweenElementsCount) {
  const auto copying_over = [](const Op& row) {
    Program program = program_of(2, 2);
    for (const ValueId seven : {0, 2, 3}) program.values[static_cast<std::size_t>(seven)].bytes = 28;
    add(program, row, {whole(0, {7})}, {whole(2, {7})});
    add(program, op::copy, {whole(1, {4})}, {{2, DType::f32, {4}, {2}, 0}});
    add(program, op::neg, {whole(2, {7})}, {whole(3, {7})});
    finish(program, {whole(3, {7})});
    verify(program);
    return program;
  };
  check_same_meaning(copying_over(op::relu), copying_over(op::relu));
  expect_error([&] { check_same_meaning(copying_over(op::relu), copying_over(op::exp)); }, {"result 0 differs"});
}

// What the program demands of whoever runs it.
TEST(Meaning, GuardsHaveOne) {
  const auto adding = [](const std::function<void(Program&)>& change) {
    Program program = program_of(2, 1);
    program.arguments.resize(1);
    program.values[1].kind = ValueKind::gradient;
    program.values[1].source = 0;
    program.slots = {{.name = "w", .requires_grad = true, .leaves_requires_grad = true, .had_grad = true}};
    program.bindings = {{0, true, 1, {}}};
    add(program, op::relu, {whole(0)}, {whole(1)}).accumulate = true;
    add(program, op::neg, {whole(1)}, {whole(2)});
    finish(program, {whole(2)});
    change(program);
    verify(program);
    return program;
  };
  const Program before = adding([](Program&) {});
  check_same_meaning(before, before);
  const std::pair<const char*, std::function<void(Program&)>> changes[] = {
      {"values from outside 0 differ", [](Program& p) { p.values[0].bytes = 32; }},
      {"values from outside 1 differ", [](Program& p) { p.values[1].bytes = 32; }},
      {"bindings 0 differ", [](Program& p) { p.bindings[0].held_by_slot_only = true; }},
      {"its mode differs", [](Program& p) { p.grad_enabled = false; }}};
  for (const auto& [what, change] : changes)
    expect_error([&] { check_same_meaning(before, adding(change)); }, {"does not mean what it did", what});
}

TEST(Meaning, TablesHaveOne) {
  const auto reading = [](const std::function<void(Program&)>& change) {
    Program program = program_of(0, 4);
    for (ValueId v = 0; v < 3; ++v) program.values[static_cast<std::size_t>(v)].source = v % 2;
    program.values[0].kind = program.values[1].kind = ValueKind::constant;
    program.values[2].kind = ValueKind::unit;
    program.constants = {{.bytes = "", .hash = 17}, {.bytes = "", .hash = 18}};
    program.units = {"a full", "b full"};
    program.settings = {{"a", "divides by 2"}};
    program.layouts = {"{0: dp} on mesh(dp=2)"};
    add(program, op::sub, {whole(0), whole(1)}, {whole(3)});
    add(program, op::add, {whole(3), whole(2)}, {whole(3)});
    finish(program, {whole(3)});
    change(program);
    write_numbers(program);
    verify(program);
    return program;
  };
  const Program before = reading([](Program&) {});
  const Meanings meanings(before);
  check_same_meaning(meanings, before);
  const std::pair<const char*, std::function<void(Program&)>> changes[] = {
      {"constants", [](Program& p) { p.constants[1].hash = 19; }},
      {"result 0", [](Program& p) { std::swap(p.values[0].source, p.values[1].source); }},
      {"values from outside", [](Program& p) { p.values[2].source = 1; }},
      {"values from outside",
       [](Program& p) {
         static constinit const Op fill{.name = "fill",
                                        .infer = [](const InferCall&) { return Metas{}; },
                                        .traits = {.effect = true},
                                        .residency = {.restores = 1u << 0}};
         p.values[2].is_absent = true;
         add(p, fill, {whole(2)}, {}).restores = {2};
         std::swap(p.nodes[0], p.nodes.back());
         std::swap(p.nodes[1], p.nodes.back());
       }},
      {"values from outside",
       [](Program& p) {
         static constinit const Op let_go{.name = "let_go",
                                          .infer = [](const InferCall&) { return Metas{}; },
                                          .traits = {.effect = true},
                                          .residency = {.releases = 1u << 0}};
         add(p, let_go, {whole(2)}, {}).releases = {2};
       }},
      {"units", [](Program& p) { p.units[0] = "c full"; }},
      {"settings", [](Program& p) { p.settings[0].text = "divides by 4"; }},
      {"settings", [](Program& p) { p.settings[0].name = "b"; }},
      {"layouts", [](Program& p) { p.layouts[0] = "{0: dp} on mesh(dp=4)"; }}};
  for (const auto& [what, change] : changes)
    expect_error([&] { check_same_meaning(meanings, reading(change)); }, {"does not mean what it did", what});
}

}  // namespace
}  // namespace sherd::testing
