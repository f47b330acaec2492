// Every rule has a graph that breaks it and no other.
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
Graph sound() {
  Graph graph;
  graph.values = {argument(kShape), temporary(kShape), temporary(kShape)};
  graph.arguments.emplace_back();
  graph.nodes.push_back(node(op::add, {ref(0), ref(0)}, ref(1)));
  graph.nodes.push_back(node(op::matmul, {ref(1), ref(0)}, ref(2)));
  graph.results.push_back({ref(2), kShape, nullptr});
  compute_lifetimes(graph);
  return graph;
}

void expect_broken(const Graph& graph, std::initializer_list<std::string_view> parts) {
  expect_error([&] { verify(graph); }, parts);
}

TEST(Verify, ASoundGraphPasses) {
  const Graph graph = sound();
  verify(graph);
  EXPECT_EQ(graph.nodes[0].frees, std::vector<ValueId>{});
  EXPECT_EQ(graph.nodes[1].frees, std::vector<ValueId>{1});
}

TEST(Verify, RefsLieWithinTheirValue) {
  Graph graph = sound();
  graph.nodes[1].in[1].offset = 1;
  expect_broken(graph, {"bytes 4 to 20 of a value that has 16", "node", "1: %1 f32[2,2] = matmul"});
  graph = sound();
  graph.nodes[1].in[1].offset = -1;
  expect_broken(graph, {"bytes -4 to 12"});
  graph = sound();
  graph.nodes[1].in[1].value = 7;
  expect_broken(graph, {"names value 7 of 3", "1: matmul"});
  graph = sound();
  graph.nodes[1].in[1].strides = {1};
  expect_broken(graph, {"shape [2,2] and strides [1]"});
}

TEST(Verify, ValuesAreWrittenBeforeTheyAreRead) {
  Graph graph = sound();
  std::swap(graph.nodes[0], graph.nodes[1]);
  compute_lifetimes(graph);
  expect_broken(graph, {"input 0 is read before anything was written"});
  graph = sound();
  graph.nodes[0].accumulate = true;
  expect_broken(graph, {"an output is read before anything was written"});
  graph = sound();
  graph.values.push_back(temporary(kShape));
  graph.results.push_back({ref(3), kShape, nullptr});
  expect_broken(graph, {"a result is read before anything was written"});
}

TEST(Verify, TemporariesAreFreedOnceAfterTheirLastUse) {
  Graph graph = sound();
  graph.nodes[1].frees.clear();
  expect_broken(graph, {"temporary value 1 is never freed"});
  graph = sound();
  graph.nodes[0].frees = {1};
  graph.nodes[1].frees.clear();
  expect_broken(graph, {"input 0 is used after it was freed"});
  graph = sound();
  graph.nodes[1].frees = {1, 1};
  expect_broken(graph, {"value 1 is freed and is not live"});
  graph = sound();
  graph.nodes[1].frees = {1, 0};
  expect_broken(graph, {"value 0 is freed and is no temporary"});
  graph = sound();
  graph.nodes[1].frees = {1, 2};
  expect_broken(graph, {"a result is used after it was freed"});
}

TEST(Verify, ReleasedDataIsNotUsed) {
  const auto with_unit = [](bool restored) {
    Graph graph = sound();
    graph.values[0].kind = ValueKind::unit;
    graph.values[0].held = Storage::allocate(16, MemoryCategory::unsharded);
    graph.arguments.clear();
    graph.nodes[0].releases = {0};
    if (!restored) return graph;
    static const Op restore{
        .name = "restore", .infer = [](const InferCall&) { return Metas{}; }, .traits = {.effect = true}};
    GraphNode again;
    again.op = &restore;
    again.in.push_back(ref(0));
    again.restores = {0};
    graph.nodes.insert(graph.nodes.begin() + 1, again);
    return graph;
  };
  expect_broken(with_unit(false), {"input 1 is used after its data was released"});
  verify(with_unit(true));
  Graph graph = sound();
  graph.nodes[0].releases = {0};
  expect_broken(graph, {"value 0 has no data to release"});
}

TEST(Verify, InferAgreesWithTheOutputs) {
  Graph graph = sound();
  graph.nodes[1].out[0] = whole(2, {4});
  expect_broken(graph, {"infer gives f32[2,2] for output 0, the node has f32[4]"});
  graph = sound();
  graph.nodes[1].out.push_back(ref(2));
  expect_broken(graph, {"infer gives 1 outputs, the node has 2"});
  graph = sound();
  graph.nodes[1].in[0] = whole(1, {4, 1});
  expect_broken(graph, {"matmul"});
  graph = sound();
  graph.nodes[0].op = &op::permute;
  expect_broken(graph, {"permute is a view"});
  graph = sound();
  graph.nodes[0].op = nullptr;
  expect_broken(graph, {"a node has no op", "without an op"});
}

TEST(Verify, OnlyElementwiseOpsWriteOverWhatTheyRead) {
  Graph graph = sound();
  graph.nodes[1].out[0] = ref(1);
  graph.results[0].local = ref(1);
  graph.values.pop_back();
  compute_lifetimes(graph);
  expect_broken(graph, {"overlap", "matmul"});
  graph.nodes[1] = node(op::add, {ref(1), ref(0)}, ref(1));
  compute_lifetimes(graph);
  verify(graph);
  // Shifted by one element is not element by element.
  graph.values[1].bytes = 20;
  graph.nodes[1].out[0].offset = 1;
  compute_lifetimes(graph);
  expect_broken(graph, {"overlap", "add"});
}

TEST(Verify, SlotsAndSourcesExist) {
  Graph graph = sound();
  graph.updates.push_back({3, false, {ref(2), kShape, nullptr}});
  expect_broken(graph, {"slot 3 of 0"});
  graph = sound();
  graph.values[0].source = 1;
  expect_broken(graph, {"source 1 of 1"});
  graph = sound();
  graph.bindings.push_back({0, false, 0, {}});
  expect_broken(graph, {"a binding names slot 0 and value 0"});
  graph = sound();
  graph.values[0].kind = ValueKind::constant;
  expect_broken(graph, {"holds its storage"});
}

}  // namespace
}  // namespace sherd::testing
