// Results that the tape does not keep: backward computes them again from what their makers keep. Oracle: the result of
// the forward call, bit for bit, and the bytes of the accounting.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/op.h"
#include "runtime/op/core/vjp_call.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/op_cases.h"

namespace sherd::testing {
namespace {

/// A slot that wants gradients.
struct Param {
  explicit Param(const Tensor& value) : slot("w", true) { slot.set(value); }
  const Tensor& operator()() const { return slot.value(); }
  const Tensor& grad() const { return slot.grad(); }
  Slot slot;
};

std::int64_t activation_bytes() {
  return RankContext::current().allocator().accounting().current(MemoryCategory::activations);
}

// d/dw of sum(y * w) is y as backward sees it.
Tensor seen_by_backward(const OpCase& c, DType dtype, Tensor* forward) {
  std::vector<Tensor> inputs = inputs_of(c, dtype);
  std::deque<Param> params;
  for (Tensor& input : inputs)
    if (input.defined()) input = params.emplace_back(input)();
  Tensor y = call_op(find_op(c.op), inputs, c.attrs)[0];
  *forward = y.detach();
  const Param w(ones(y.shape(), y.dtype()));
  const Tensor product = mul(std::move(y), w());
  backward(product, {.grad = ones(product.shape(), product.dtype())});
  return w.grad();
}

TEST(Recompute, BackwardSeesTheBitsOfForward) {
  int rows = 0;
  for (const OpCase& c : op_cases()) {
    if (!find_op(c.op).recompute) continue;
    ++rows;
    SCOPED_TRACE(c.op + " " + c.name);
    for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      Tensor forward;
      const Tensor seen = seen_by_backward(c, dtype, &forward);
      if (forward.numel() > 0) { EXPECT_TRUE(same_bits(seen, forward)) << name(dtype); }
    }
  }
  EXPECT_GT(rows, 10);
}

TEST(Recompute, TheTapeKeepsTheInputOnly) {
  const Param x(full({1000}, 0.5)), w(full({1000}, 2.0));
  const std::int64_t before = activation_bytes();
  Tensor u = neg(x());
  Tensor y = gelu(u);
  Tensor z = mul(y, w());
  EXPECT_EQ(activation_bytes() - before, 12'000);
  u = y = Tensor();
  EXPECT_EQ(activation_bytes() - before, 8'000) << "u for gelu; y can be had from it";
  backward(z, {.grad = ones({1000})});
  z = Tensor();
  EXPECT_TRUE(same_bits(w.grad(), gelu(full({1000}, -0.5))));
}

// The norm's result is 200 KB, so is its gradient: they are not there at the same time.
TEST(Recompute, TheLastReaderLetsTheResultGo) {
  const Param x(full({50, 1000}, 0.5)), scale(ones({1000})), a(full({10, 1000}, 0.25));
  Accounting& account = RankContext::current().allocator().accounting();
  Tensor h = layer_norm(square(x()), scale(), Tensor(), 1e-5);
  std::int64_t peak = 0;  // until the norm's own turn
  register_grad_hook(h, [&](const Tensor&) { return peak = account.peak(MemoryCategory::activations), Tensor(); });
  const Tensor loss = sum(linear(std::move(h), a()));
  account.reset_peaks();
  const std::int64_t before = activation_bytes();
  backward(loss);
  EXPECT_GT(peak - before, 200'000);
  EXPECT_LT(peak - before, 300'000);
}

// Two readers of one result, the same in both.
TEST(Recompute, ReadersSeeTheSame) {
  const Param x(full({50, 1000}, 0.5)), scale(ones({1000}));
  const Param a(full({10, 1000}, 0.25)), b(full({10, 1000}, 0.5));
  Tensor h = layer_norm(square(x()), scale(), Tensor(), 1e-5);
  const Tensor loss = sum(add(linear(h, a()), linear(h, b())));
  h = Tensor();
  backward(loss);
  EXPECT_TRUE(same_bits(a.grad(), b.grad()));
}

TEST(Recompute, TwoPassesOverOneGraphAgree) {
  const Param x(full({7}, 0.5)), w(full({3, 7}, 2.0));
  const Tensor loss = sum(linear(unsqueeze(silu(square(x())), 0), w()));
  backward(loss, {.retain_graph = true});
  const Tensor once_x = x.grad(), once_w = w.grad();
  backward(loss);
  EXPECT_TRUE(same_bits(x.grad(), once_x * 2));
  EXPECT_TRUE(same_bits(w.grad(), once_w * 2));
  expect_error([&] { backward(loss); }, {"a second time"});
}

TEST(Recompute, AMakerThatIsGoneOrWrittenIsAnError) {
  Param x(full({3}, 0.5));
  const Param w(full({3}, 2.0));
  const Tensor y = gelu(x());
  const Tensor first = sum(y), second = sum(mul(y, w()));
  backward(first);
  expect_error([&] { backward(second); }, {"backward through gelu a second time"});
  const Tensor third = sum(mul(gelu(x()), w()));
  x.slot.assign(full({3}, 1.0));
  expect_error([&] { backward(third); }, {"has been written since"});
}

// A row that is no function of its inputs.
TensorMeta unsteady_result;
constinit const Op kUnsteady{.name = "recompute_test.unsteady",
                             .infer = [](const InferCall&) { return Metas{unsteady_result}; },
                             .needs = {.inputs = 1},
                             .vjp = [](VjpCall& c) { c.give(0, c.take_grad()); },
                             .recompute = true};

TEST(Recompute, WhatComesOutDifferentlyIsAnError) {
  add_rows([](OpTable& table) {
    table.add({&kUnsteady});
    table.kernel(kUnsteady, Device::Kind::cpu, [](const KernelCall& call) {
      std::memset(call.out[0].raw_to_write(), 0, static_cast<std::size_t>(call.out[0].bytes()));
    });
  });
  const auto backward_with = [](DType dtype, const Shape& shape) {
    const Param x(full({3}, 0.5)), w(full({3}, 2.0));
    unsteady_result = {.shape = {3}, .dtype = DType::f32};
    Tensor in[] = {x()};
    const Tensor loss = sum(mul(call_op(kUnsteady, in, {})[0], w()));
    unsteady_result = {.shape = shape, .dtype = dtype};
    backward(loss);
  };
  EXPECT_NO_THROW(backward_with(DType::f32, {3}));
  expect_error([&] { backward_with(DType::bf16, {3}); },
               {"recompute_test.unsteady gave f32[3] in forward and bf16[3] when backward ran it again"});
  expect_error([&] { backward_with(DType::f32, {1}); },
               {"recompute_test.unsteady gave f32[3] in forward and f32[1] when backward ran it again"});
}

}  // namespace
}  // namespace sherd::testing
