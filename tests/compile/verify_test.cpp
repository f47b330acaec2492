// Every rule has a program that breaks it and no other.
#include "compile/ir/verify.h"

#include <gtest/gtest.h>

#include "compile/ir/print.h"
#include "runtime/op/attrs.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

Value argument(const Shape& shape) {
  Value value;
  value.kind = ValueKind::argument;
  value.bytes = 4 * numel(shape);
  value.source = 0;
  return value;
}

Value temporary(const Shape& shape) {
  Value value;
  value.bytes = 4 * numel(shape);
  return value;
}

TensorRef whole(ValueId value, const Shape& shape) { return {value, DType::f32, shape, contiguous_strides(shape), 0}; }

GraphNode node(const Op& op, std::initializer_list<TensorRef> in, const TensorRef& out, const Attrs& attrs = {}) {
  GraphNode result;
  result.op = &op;
  result.attrs = attrs;
  for (const TensorRef& ref : in) result.in.push_back(ref);
  result.out.push_back(out);
  return result;
}

const Shape kShape{2, 2};
TensorRef ref(ValueId value) { return whole(value, kShape); }

// %0 = add($0, $0);  %1 = matmul(%0, $0);  return %1
Program sound() {
  Program program;
  program.values = {argument(kShape), temporary(kShape), temporary(kShape)};
  program.arguments.emplace_back();
  program.nodes.push_back(node(op::add, {ref(0), ref(0)}, ref(1)));
  program.nodes.push_back(node(op::matmul, {ref(1), ref(0)}, ref(2)));
  program.results.push_back({ref(2), kShape});
  compute_lifetimes(program);
  return program;
}

void expect_broken(const Program& program, std::initializer_list<std::string_view> parts) {
  expect_error([&] { verify(program); }, parts);
}

TEST(Verify, ASoundGraphPasses) {
  const Program program = sound();
  verify(program);
  EXPECT_EQ(program.nodes[0].frees, std::vector<ValueId>{});
  EXPECT_EQ(program.nodes[1].frees, std::vector<ValueId>{1});
}

TEST(Verify, RefsLieWithinTheirValue) {
  Program program = sound();
  program.nodes[1].in[1].offset = 1;
  expect_broken(program, {"bytes 4 to 20 of a value that has 16", "node", "1: %1 f32[2,2] = matmul"});
  program = sound();
  program.nodes[1].in[1].offset = -1;
  expect_broken(program, {"bytes -4 to 12"});
  program = sound();
  program.nodes[1].in[1].value = 7;
  expect_broken(program, {"names value 7 of 3", "1: matmul"});
  program = sound();
  program.nodes[1].in[1].strides = {1};
  expect_broken(program, {"shape [2,2] and strides [1]"});
}

TEST(Verify, ValuesAreWrittenBeforeTheyAreRead) {
  Program program = sound();
  std::swap(program.nodes[0], program.nodes[1]);
  compute_lifetimes(program);
  expect_broken(program, {"input 0 is read before anything was written"});
  program = sound();
  program.nodes[0].accumulate = true;
  expect_broken(program, {"an output is read before anything was written"});
  program = sound();
  program.values.push_back(temporary(kShape));
  program.results.push_back({ref(3), kShape});
  expect_broken(program, {"a result is read before anything was written"});
}

TEST(Verify, TemporariesAreFreedOnceAfterTheirLastUse) {
  Program program = sound();
  program.nodes[1].frees.clear();
  expect_broken(program, {"temporary value 1 is never freed"});
  program = sound();
  program.nodes[0].frees = {1};
  program.nodes[1].frees.clear();
  expect_broken(program, {"input 0 is used after it was freed"});
  program = sound();
  program.nodes[1].frees = {1, 1};
  expect_broken(program, {"value 1 is freed and is not live"});
  program = sound();
  program.nodes[1].frees = {1, 0};
  expect_broken(program, {"value 0 is freed and is no temporary"});
  program = sound();
  program.nodes[1].frees = {1, 2};
  expect_broken(program, {"a result is used after it was freed"});
}

TEST(Verify, ReleasedDataIsNotUsed) {
  const auto with_unit = [](bool restored) {
    Program program = sound();
    program.values[0].kind = ValueKind::unit;
    program.units.emplace_back("blocks.0 full");
    program.arguments.clear();
    program.nodes[0].releases = {0};
    if (!restored) return program;
    static const Op restore{
        .name = "restore", .infer = [](const InferCall&) { return Metas{}; }, .traits = {.effect = true}};
    GraphNode again;
    again.op = &restore;
    again.in.push_back(ref(0));
    again.restores = {0};
    program.nodes.insert(program.nodes.begin() + 1, again);
    return program;
  };
  expect_broken(with_unit(false), {"input 1 is used after its data was released"});
  verify(with_unit(true));
  Program program = sound();
  program.nodes[0].releases = {0};
  expect_broken(program, {"value 0 has no data to release"});
}

TEST(Verify, InferAgreesWithTheOutputs) {
  Program program = sound();
  program.nodes[1].out[0] = whole(2, {4});
  expect_broken(program, {"infer gives f32[2,2] for output 0, the node has f32[4]"});
  program = sound();
  program.nodes[1].out.push_back(ref(2));
  expect_broken(program, {"infer gives 1 outputs, the node has 2"});
  program = sound();
  program.nodes[1].in[0] = whole(1, {4, 1});
  expect_broken(program, {"matmul"});
  program = sound();
  program.nodes[0].op = &op::permute;
  expect_broken(program, {"permute is a view"});
  program = sound();
  program.nodes[0].op = nullptr;
  expect_broken(program, {"a node has no op", "without an op"});
}

TEST(Verify, OnlyElementwiseOpsWriteOverWhatTheyRead) {
  Program program = sound();
  program.nodes[1].out[0] = ref(1);
  program.results[0].local = ref(1);
  program.values.pop_back();
  compute_lifetimes(program);
  expect_broken(program, {"overlap", "matmul"});
  program.nodes[1] = node(op::add, {ref(1), ref(0)}, ref(1));
  compute_lifetimes(program);
  verify(program);
  // Shifted by one element is not element by element.
  program.values[1].bytes = 20;
  program.nodes[1].out[0].offset = 1;
  compute_lifetimes(program);
  expect_broken(program, {"overlap", "add"});
}

TEST(Verify, SlotsAndSourcesExist) {
  Program program = sound();
  program.updates.push_back({3, false, {ref(2), kShape}});
  expect_broken(program, {"slot 3 of 0"});
  program = sound();
  program.values[0].source = 1;
  expect_broken(program, {"source 1 of 1"});
  program = sound();
  program.bindings.push_back({0, false, 0, {}});
  expect_broken(program, {"a binding names slot 0 and value 0"});
  program = sound();
  program.values[0].kind = ValueKind::constant;
  expect_broken(program, {"source 0 of 0"});
}

}  // namespace
}  // namespace sherd::testing
