// The rows of products on a device, over the strides that operands may have. Oracle: the CPU's kernels on dense
// copies of the same operands, in f64.
#include <functional>

#include <gtest/gtest.h>

#include "runtime/op/core/dispatch.h"
#include "runtime/op/rows/ops.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/draw.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

class CudaMatmul : public cuda::CudaTest {};

using MatrixView = std::function<Tensor(Tensor)>;
const MatrixView kAsItIs = [](Tensor t) { return t; };

struct Way {
  const char* name;
  Shape a, b;                 // as stored
  MatrixView view_a, view_b;  // to the operands
};

// Views of both kinds: those that an engine reads in place, and those that need a copy.
std::vector<Way> ways() {
  const auto swap = [](Tensor t) { return transpose(std::move(t), -1, -2); };
  const auto inner = [](Tensor t) { return narrow(narrow(std::move(t), -1, 2, 8), -2, 1, 8); };  // 16-byte steps of 9
  const auto heads = [](Tensor t) { return permute(std::move(t), {0, 2, 1, 3}); };  // [B,T,H,D] -> [B,H,T,D]
  return {
      {"dense", {8, 8}, {8, 8}, kAsItIs, kAsItIs},
      {"transposed", {5, 3}, {7, 5}, swap, swap},
      {"slices", {10, 12}, {9, 11}, inner, inner},
      {"transposed slices",
       {10, 12},
       {9, 11},
       [=](Tensor t) { return swap(inner(std::move(t))); },
       [=](Tensor t) { return swap(inner(std::move(t))); }},
      {"every other column",
       {3, 5, 2},
       {5, 4, 2},
       [](Tensor t) { return select(std::move(t), 2, 1); },
       [](Tensor t) { return select(std::move(t), 2, 0); }},
      {"one row repeated",
       {1, 5},
       {5, 1},
       [](Tensor t) { return expand(std::move(t), {3, 5}); },
       [](Tensor t) { return expand(std::move(t), {5, 4}); }},
      {"heads", {2, 5, 3, 4}, {2, 6, 3, 4}, heads, [=](Tensor t) { return swap(heads(std::move(t))); }},
      {"batch of slices",
       {4, 6, 7},
       {4, 7, 5},
       [](Tensor t) { return narrow(std::move(t), 0, 1, 3); },
       [](Tensor t) { return narrow(std::move(t), 0, 0, 3); }},
      {"one right factor", {3, 4, 5}, {5, 6}, kAsItIs, kAsItIs},
      {"one left factor", {4, 5}, {3, 5, 6}, kAsItIs, kAsItIs},
      {"crossed batches", {2, 1, 3, 4}, {3, 4, 5}, kAsItIs, kAsItIs},
      {"crossed heads",
       {2, 3, 1, 4, 5},
       {1, 3, 2, 5, 4},
       [](Tensor t) { return permute(std::move(t), {1, 0, 2, 3, 4}); },
       [](Tensor t) { return permute(std::move(t), {1, 0, 2, 3, 4}); }},
  };
}

Tensor drawn(const Shape& shape, DType dtype, unsigned seed) {
  std::vector<double> values(static_cast<std::size_t>(numel(shape)));
  std::uint32_t state = seed;
  for (double& v : values) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<double>(state >> 8) / 0x1p23 - 1;
  }
  return cast(Tensor::from<double>(values, shape), dtype);
}

TEST_F(CudaMatmul, OperandsInEveryLayout) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const Way& way : ways()) {
      SCOPED_TRACE(fmt::format("{} {}", name(dtype), way.name));
      const Tensor a = drawn(way.a, dtype, 1), b = drawn(way.b, dtype, 2);
      const Tensor expected = matmul(cast(way.view_a(a), DType::f64), cast(way.view_b(b), DType::f64));
      const Tensor actual = matmul(way.view_a(to(a, kCuda)), way.view_b(to(b, kCuda)));
      EXPECT_TRUE(near(to(actual, Device::cpu()), expected, tolerance(dtype)));
    }
}

TEST_F(CudaMatmul, RowsOfLinearInEveryLayout) {
  const auto swap = [](Tensor t) { return transpose(std::move(t), 0, 1); };
  const MatrixView views[] = {kAsItIs, [=](Tensor t) { return swap(std::move(t)); },
                              [](Tensor t) { return narrow(std::move(t), 2, 1, 4); }};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (std::size_t v = 0; v < std::size(views); ++v)
      for (const bool transposed : {false, true}) {
        SCOPED_TRACE(fmt::format("{} view {} weight transposed {}", name(dtype), v, transposed));
        const Tensor x = drawn({3, 5, 6}, dtype, 1), bias = drawn({14}, dtype, 3);
        const std::int64_t inner = v == 2 ? 4 : 6;
        const Tensor w = transposed ? drawn({inner, 7}, dtype, 2) : drawn({7, inner}, dtype, 2);
        const auto weight = [&](Tensor t) { return transposed ? swap(std::move(t)) : t; };
        const auto every_other = [](Tensor t) { return select(reshape(std::move(t), {7, 2}), 1, 1); };
        const auto wide = [](Tensor t) { return cast(std::move(t), DType::f64); };
        const Tensor expected = linear(wide(views[v](x)), wide(weight(w)), wide(every_other(bias)));
        const Tensor actual = linear(views[v](to(x, kCuda)), weight(to(w, kCuda)), every_other(to(bias, kCuda)));
        EXPECT_TRUE(near(to(actual, Device::cpu()), expected, tolerance(dtype)));
      }
}

TEST_F(CudaMatmul, GradientsAreAddedWhereTheyBelong) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    SCOPED_TRACE(name(dtype));
    const Tensor grad = drawn({4, 6, 8}, dtype, 1), x = drawn({4, 6, 16}, dtype, 2), before = drawn({8, 16}, dtype, 3);
    const auto wide = [](Tensor t) { return cast(std::move(t), DType::f64); };
    const Tensor expected =
        wide(before) + matmul(transpose(reshape(wide(grad), {24, 8}), 0, 1), reshape(wide(x), {24, 16}));
    const Tensor out = to(before, kCuda);
    call_into(op::linear_weight_grad, {}, out, true, to(grad, kCuda), to(x, kCuda));
    EXPECT_TRUE(near(to(out, Device::cpu()), expected, tolerance(dtype)));
  }
}

TEST_F(CudaMatmul, TheBackwardPassMatches) {
  const auto gradients = [](Device device) {
    Tensor x = to(drawn({2, 3, 4}, DType::f32, 1), device), w = to(drawn({5, 4}, DType::f32, 2), device);
    const Tensor grad = linear(x, w);
    std::vector<Tensor> both = {call(op::matmul, {}, grad, w), call(op::linear_weight_grad, {}, grad, x)};
    for (Tensor& t : both) t = to(t, Device::cpu());
    return both;
  };
  const auto expected = gradients(Device::cpu()), actual = gradients(kCuda);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(near(actual[i], expected[i]));
}

}  // namespace
}  // namespace sherd::testing
