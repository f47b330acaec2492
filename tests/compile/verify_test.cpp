// Every rule has a program that breaks it and no other.
#include "compile/ir/verify.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <utility>

#include "compile/ir/analysis/access.h"
#include "compile/ir/analysis/overlap.h"
#include "compile/ir/text/print.h"
#include "runtime/op/attrs/attrs.h"
#include "runtime/op/rows/gather.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/view_attrs.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using namespace ir;

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
  expect_broken(program, {"output 0 is read before anything was written"});
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

// Rows that let a unit's storage go, and that fill it.
constinit const Op kLetGo{.name = "let_go",
                          .infer = [](const InferCall&) { return Metas{}; },
                          .traits = {.issues = true, .effect = true},
                          .residency = {.releases = 1u << 0}};
constinit const Op kFill{.name = "fill",
                         .infer = [](const InferCall&) { return Metas{}; },
                         .traits = {.issues = true, .effect = true},
                         .residency = {.restores = 1u << 0}};

GraphNode residency_node(const Op& op) {
  GraphNode node;
  node.op = &op;
  node.in.push_back(ref(0));
  if (&op == &kLetGo) node.releases = {0};
  if (&op == &kFill) node.restores = {0};
  return node;
}

TEST(Verify, ReleasedDataIsNotUsed) {
  Program program = sound();
  program.nodes[0].releases = {0};
  expect_broken(program, {"value 0 has no data to release"});
  program.values[0].kind = ValueKind::unit;
  program.units.emplace_back("blocks.0 full");
  program.arguments.clear();
  expect_broken(program, {"says that it releases the data of 1 values, and does so to 0", "add"});
  program.nodes[0].releases.clear();
  verify(program);
  program.nodes.insert(program.nodes.begin() + 1, residency_node(kLetGo));
  expect_broken(program, {"input 1 is used after its data was released"});
  program.nodes.insert(program.nodes.begin() + 2, residency_node(kFill));
  verify(program);
}

// What was absent when the step began comes by a node, and rows with effects read what is there as all do.
TEST(Verify, AbsentDataIsNotUsed) {
  static const Op look{.name = "look", .infer = [](const InferCall&) { return Metas{}; }, .traits = {.effect = true}};
  const auto with = [](std::initializer_list<const Op*> rows, bool is_absent) {
    Program program;
    program.values = {argument(kShape)};
    program.values[0].kind = ValueKind::unit;
    program.values[0].is_absent = is_absent;
    program.units = {"blocks.0 full"};
    bool is_present = !is_absent;
    for (const Op* row : rows) {
      GraphNode& node = program.nodes.emplace_back(residency_node(*row));
      if (row == &kFill && std::exchange(is_present, true)) node.restores.clear();
      if (row == &kLetGo && !std::exchange(is_present, false)) node.releases.clear();
    }
    return program;
  };
  verify(with({&look, &kLetGo, &kFill, &look}, false));
  verify(with({&kLetGo, &kFill, &look}, true));
  verify(with({&kFill, &kFill, &look, &kLetGo, &kLetGo}, true));
  expect_broken(with({&look}, true), {"input 0 is used after its data was released", "look"});
  expect_broken(with({&kLetGo, &look}, false), {"input 0 is used after its data was released", "look"});
  Program forgets = with({&kLetGo, &kFill, &look}, false);
  forgets.nodes[0].releases.clear();
  expect_broken(forgets, {"input 0 is present before the node, which does not say that it releases it", "let_go"});
  forgets = with({&kLetGo, &kFill, &look}, false);
  forgets.nodes[1].restores.clear();
  expect_broken(forgets, {"input 0 is absent before the node, which does not say that it restores it", "fill"});
  Program invents = with({&kFill, &look}, false);
  invents.nodes[0].restores = {0};
  expect_broken(invents, {"says that it restores the data of 1 values, and does so to 0", "fill"});
  Program program = sound();
  program.values[1].is_absent = true;
  expect_broken(program, {"a value without an owner has no data"});
}

// A row that fills one unit's storage from another's: only the input of its column is a place.
TEST(Verify, AStorageThatIsGatheredFromIsThere) {
  static const Op gather{.name = "gather",
                         .infer = [](const InferCall&) { return Metas{}; },
                         .traits = {.issues = true, .effect = true},
                         .residency = {.restores = 1u << 1}};
  const auto with = [](std::size_t absent) {
    Program program;
    program.units = {"blocks.0 slices", "blocks.0 full"};
    for (int i = 0; i < 2; ++i) {
      Value& value = program.values.emplace_back(argument(kShape));
      value.kind = ValueKind::unit;
      value.source = i;
    }
    program.values[absent].is_absent = true;
    GraphNode& node = program.nodes.emplace_back();
    node.op = &gather;
    node.in.push_back(ref(0));
    node.in.push_back(ref(1));
    if (absent == 1) node.restores = {1};
    return program;
  };
  verify(with(1));
  expect_broken(with(0), {"input 0 is used after its data was released", "gather"});
  const Program program = with(1);
  std::vector<Access> accesses;
  append_accesses(program, ByteRoots(program), program.nodes[0], accesses);
  ASSERT_EQ(accesses.size(), 2u);
  EXPECT_EQ(accesses[0].kind, AccessKind::input);
  EXPECT_EQ(accesses[1].kind, AccessKind::restored);
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

TEST(Verify, OutputsLieAsTheKernelWritesThem) {
  const Strides transposed{1, 2};
  Program program = sound();
  program.nodes[1].out[0].strides = transposed;
  program.results[0].local.strides = transposed;
  expect_broken(program, {"output 0 has strides [1,2], and the kernel writes it dense", "matmul"});
  program.nodes[1] = node(op::copy, {ref(1)}, program.nodes[1].out[0]);
  compute_lifetimes(program);
  verify(program);
  // What the kernel cannot add, the dispatcher adds by a copy.
  program = sound();
  program.nodes.push_back(node(op::softmax, {ref(1)}, ref(2), DimAttrs{1}));
  program.nodes[2].accumulate = true;
  program.nodes[2].out[0].strides = transposed;
  compute_lifetimes(program);
  verify(program);
}

TEST(Verify, ElementsOfAnOutputShareNoBytes) {
  Program program = sound();
  const TensorRef square{1, DType::f32, {64, 64}, {0, 0}, 0};
  program.values[0] = argument({64, 64});
  program.values[1].bytes = 4;
  for (const Op* row : {&op::relu, &op::copy}) {
    program.nodes[0] = node(*row, {whole(0, {64, 64})}, square);
    program.nodes[1] = node(op::relu, {square}, whole(2, {64, 64}));
    expect_broken(program, {"elements of output 0 share bytes by strides [0,0]"});
  }
}

TEST(Verify, BytesAreWrittenBeforeTheyAreRead) {
  const TensorRef row0{1, DType::f32, {2}, {1}, 0}, row1{1, DType::f32, {2}, {1}, 2};
  const TensorRef of_argument{0, DType::f32, {2}, {1}, 0};
  Program program = sound();
  program.nodes[0] = node(op::relu, {of_argument}, row0);
  expect_broken(program, {"input 0 is read before all of it was written", "1: "});
  program.nodes.insert(program.nodes.begin() + 1, node(op::relu, {of_argument}, row1));
  verify(program);
  program.results[0].local = ref(1);
  program.nodes.erase(program.nodes.begin() + 1, program.nodes.end());
  program.values.pop_back();
  compute_lifetimes(program);
  expect_broken(program, {"a result is read before all of it was written"});
}

TEST(Verify, ScratchIsItsNodesOwn) {
  Program program = sound();
  program.values.push_back(temporary(kShape));
  program.nodes[0].scratch = 3;
  compute_lifetimes(program);
  EXPECT_EQ(program.nodes[0].frees, std::vector<ValueId>{3});
  verify(program);
  Program late = program;
  late.nodes[0].frees.clear();
  late.nodes[1].frees.push_back(3);
  expect_broken(late, {"value 3 is freed and is not live"});
  program.nodes[1].in[1] = ref(3);
  compute_lifetimes(program);
  expect_broken(program, {"input 1 is used, and is the scratch of a node"});
}

// In place, element by element or not at all: a transpose overwrites what it has still to read.
TEST(Verify, StridedTensorsOverlapByTheirElements) {
  Program program = sound();
  program.nodes[1] = node(op::copy, {ref(1)}, {1, DType::f32, kShape, {1, 2}, 0});
  program.results[0].local = ref(1);
  program.values.pop_back();
  compute_lifetimes(program);
  expect_broken(program, {"output and input overlap", "copy"});
  const TensorRef column0{1, DType::f32, {2}, {2}, 0}, column1{1, DType::f32, {2}, {2}, 1};
  program.nodes[1] = node(op::copy, {column0}, column1);
  verify(program);
}

TEST(Verify, OutputsOfANodeOverlapNeither) {
  Program program = sound();
  program.values[1].bytes = 48;
  program.nodes[0] = node(op::topk, {ref(0)}, ref(1), TopKAttrs{.k = 2, .dim = 1});
  program.nodes[0].out.push_back({1, DType::i64, kShape, contiguous_strides(kShape), 2});  // behind the 16 bytes of f32
  verify(program);
  for (const std::int64_t offset : {0, 1}) {
    program.nodes[0].out[1].offset = offset;
    expect_broken(program, {"outputs 0 and 1 overlap", "topk"});
  }
}

TEST(Verify, ArgumentsThatShareMemoryOverlap) {
  Program program = sound();
  program.values.push_back(argument(kShape));
  program.values[3].source = 1;
  program.arguments.emplace_back();
  program.arguments[1].shares = 0;
  program.nodes[1].out[0] = ref(3);
  program.results[0].local = ref(3);
  program.values[2] = program.values[3];
  program.values.pop_back();
  program.nodes[1].out[0] = program.results[0].local = ref(2);
  compute_lifetimes(program);
  expect_broken(program, {"output and input overlap", "matmul"});
  program.arguments[1].shift = 16;
  verify(program);
  program.arguments[1].shares = 1;
  expect_broken(program, {"argument 1 shares the memory of argument 1"});
}

TEST(Verify, AnEntryOfATableIsOneValueOfOneName) {
  Program program = sound();
  program.values.push_back(argument({1}));
  expect_broken(program, {"two values name source 0 of one kind"});
  const auto named = [](const std::function<void(Program&)>& change) {
    Program changed = sound();
    change(changed);
    return changed;
  };
  expect_broken(named([](Program& p) { p.units = {"a full", "b full", "a full"}; }),
                {"two units are called \"a full\""});
  verify(named([](Program& p) { p.units = {"", ""}; }));
  expect_broken(named([](Program& p) { p.settings = {{"a", "1"}, {"a", "2"}}; }), {"two settings are called \"a\""});
  expect_broken(named([](Program& p) { p.slots = {{.name = "w"}, {.name = "w"}}; }), {"two slots are called \"w\""});
  expect_broken(named([](Program& p) { p.layouts = {"l", "l"}; }), {"two layouts are called \"l\""});
  expect_broken(named([](Program& p) { p.modules = {"m", "m"}; }), {"two modules are called \"m\""});
  program = sound();
  program.slots = {{.name = "w", .had_value = true}};
  program.values[0].kind = ValueKind::slot;
  program.arguments.clear();
  program.bindings = {{0, false, 0, {}}, {0, false, 0, {}}};
  expect_broken(program, {"slot \"w\" is bound twice"});
}

TEST(Verify, ValuesAreWhereTheirGuardsAndNodesSay) {
  Program program = sound();
  program.values[0].device = Device::cuda(0);
  expect_broken(program, {"argument 0 is not on the device of its value"});
  program.arguments[0].tensor.device = Device::cuda(0);
  expect_broken(program, {"input 0 is on cuda:0, the node runs on cpu", "add"});
  program = sound();
  program.values[1].device = Device::meta();
  expect_broken(program, {"a value is on meta"});
  program.values[1].device = Device::cuda(1);
  expect_broken(program, {"the node runs on cuda:1"});
}

TEST(Verify, APlaceIsATemporaryOfTheSameBytes) {
  Program program = sound();
  program.values[2].place = 1;
  verify(program);
  program.values[1].bytes = 32;
  expect_broken(program, {"a value of 16 bytes has a place of 32"});
  for (const ValueId place : {0, 2, 3}) {
    program = sound();
    program.values[2].place = place;
    expect_broken(program, {"place is"});
  }
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

// Oracle: all bytes of all elements.
std::vector<std::int64_t> bytes_of(const TensorRef& ref, std::int64_t shift) {
  std::vector<std::int64_t> bytes;
  for (std::int64_t i = 0; i < numel(ref.shape); ++i) {
    std::int64_t at = ref.offset, rest = i;
    for (int d = ref.shape.size() - 1; d >= 0; --d) {
      at += rest % ref.shape[d] * ref.strides[d];
      rest /= ref.shape[d];
    }
    for (std::int64_t b = 0; b < byte_size(ref.dtype); ++b) bytes.push_back(at * byte_size(ref.dtype) + b + shift);
  }
  std::sort(bytes.begin(), bytes.end());
  return bytes;
}

TEST(Overlap, IsThatOfElements) {
  std::mt19937_64 random(20261123);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const auto draw = [&] {
    TensorRef ref{0, below(2) ? DType::f32 : DType::bf16, {}, {}, below(12)};
    for (std::int64_t dims = below(4); dims > 0; --dims) {
      ref.shape.push_back(below(5) ? 1 + below(4) : below(2));
      ref.strides.push_back(below(9) - 2);
    }
    return ref;
  };
  int shared = 0, repeated = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const TensorRef a = draw(), b = draw();
    const std::int64_t shift = 2 * below(8);
    const std::vector<std::int64_t> of_a = bytes_of(a, 0), of_b = bytes_of(b, shift);
    std::vector<std::int64_t> common;
    std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), std::back_inserter(common));
    ASSERT_EQ(share_bytes(a, b, shift), !common.empty())
        << to_string(a.shape) << to_string(a.strides) << a.offset << " " << to_string(b.shape) << to_string(b.strides)
        << b.offset;
    const bool repeats = std::adjacent_find(of_a.begin(), of_a.end()) != of_a.end();
    ASSERT_TRUE(repeats_bytes(a) || !repeats) << to_string(a.shape) << to_string(a.strides);
    ASSERT_TRUE(!is_contiguous(a.shape, a.strides) || !repeats_bytes(a));
    shared += !common.empty();
    repeated += repeats;
  }
  EXPECT_GT(shared, 1000);
  EXPECT_GT(repeated, 1000);
}

}  // namespace
}  // namespace sherd::testing
