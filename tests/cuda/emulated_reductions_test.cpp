// What only the emulated GPU shows of reductions, norms, losses and optimizers: the same bits in whatever order threads
// run, how many kernels a call is, and how much memory it takes.
#include <gtest/gtest.h>

#include <array>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/loss.h"
#include "runtime/op/rows/loss_attrs.h"
#include "runtime/op/rows/norm_attrs.h"
#include "runtime/op/rows/optimizer.h"
#include "runtime/op/rows/reduce_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "tests/cuda/against_cpu.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/emulated_gpu/control.h"

namespace sherd::testing {
namespace {

using EmulatedReductions = cuda::CudaTest;
namespace emulated = cuda::emulated;

Tensors results_of_all() {
  const Tensor x = to(draw(normal({50, 520}), DType::f32, 1), kCuda),
               y = to(draw(normal({50, 520}), DType::f32, 2), kCuda);
  const Tensor weight = to(draw(normal({520}), DType::f32, 3), kCuda),
               rows = to(draw(positive({50}), DType::f32, 4), kCuda);
  const Tensor classes = to(draw(ids({50}, 520), DType::f32, 5), kCuda);
  Tensors all;
  const auto add = [&](std::string_view row, std::vector<Tensor> in, const Attrs& attrs) {
    for (Tensor& t : call_row(row, std::move(in), attrs)) all.push_back(std::move(t));
  };
  for (std::uint64_t mask : {0b01, 0b10, 0b11})
    for (const char* row : {"sum", "max"}) add(row, {x}, ReduceAttrs{mask, false});
  add("argmax", {x}, ReduceAttrs{0b10, false});
  for (int dim : {0, 1}) {
    add("softmax", {x}, DimAttrs{dim});
    add("log_softmax_backward", {x, y}, DimAttrs{dim});
  }
  add("layer_norm", {x, weight, weight}, NormAttrs{});
  add("layer_norm_backward", {x, y, weight, rows, rows}, {});
  add("cross_entropy", {x, classes}, CrossEntropyAttrs{});
  const Tensor list[] = {x, y, weight};
  all.push_back(power_sum(list, 2));
  return all;
}

TEST_F(EmulatedReductions, TheOrderOfThreadsDoesNotShow) {
  const Tensors expected = results_of_all();
  for (std::uint64_t seed : {3, 17, 255}) {
    emulated::set_seed(seed);
    const Tensors actual = results_of_all();
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << i;
  }
}

TEST_F(EmulatedReductions, ManyTensorsAreFewLaunches) {
  std::array<std::vector<Tensor>, 4> lists;
  for (std::size_t l = 0; l < lists.size(); ++l)
    for (std::uint64_t i = 0; i < 100; ++i) lists[l].push_back(to(draw(positive({5}), DType::f32, i), kCuda));
  const Tensor one = to(Tensor::scalar(1), kCuda);
  RankContext::current().device(kCuda).synchronize();
  emulated::reset_counters();
  adamw_step(lists[0], lists[1], lists[2], lists[3], one, one, one, {});
  const Tensor norm = power_sum(lists[3], 2);
  count_step({&one, 1}, norm);
  RankContext::current().device(kCuda).synchronize();
  EXPECT_EQ(emulated::counters().kernels, 1 + 2 + 2 + 1 + 1);
  EXPECT_EQ(emulated::counters().copies, 0);
}

TEST_F(EmulatedReductions, LinearCrossEntropyNeverHoldsAllLogits) {
  constexpr std::int64_t V = 24, K = 4, rows = 9000;
  const Tensor x = to(draw(unit({rows, K}), DType::f32, 1), kCuda),
               weight = to(draw(unit({V, K}), DType::f32, 2), kCuda);
  const Tensor targets = to(draw(ids({rows}, V), DType::f32, 3), kCuda);
  call_row("linear_cross_entropy", {x, weight, targets}, CrossEntropyAttrs{});  // the products' workspace stays
  Accounting& memory = RankContext::current().device(kCuda).allocator().accounting();
  memory.reset_peaks();
  const std::int64_t before = memory.total();
  const Tensors out = call_row("linear_cross_entropy", {x, weight, targets}, CrossEntropyAttrs{});
  const std::int64_t chunk = loss_chunk_rows(V, Device::Kind::cuda) * V * 4, per_row = rows * 8;
  EXPECT_LT(memory.total_peak() - before, chunk + per_row + 4096);
  EXPECT_GT(rows * V * 4, chunk + per_row + 4096) << "the shape is too small to show anything";
  EXPECT_NEAR(
      out[0].item<float>(),
      call_row("cross_entropy", {linear(to(x, Device::cpu()), to(weight, Device::cpu())), to(targets, Device::cpu())},
               CrossEntropyAttrs{})[0]
          .item<float>(),
      1e-5);
}

// Three chunks: one of logits and one of their gradient at a time.
TEST_F(EmulatedReductions, NorDoesItsDerivative) {
  constexpr std::int64_t V = 64, K = 2, rows = 3 * loss_chunk_rows(V, Device::Kind::cuda);
  const Tensor x = draw(unit({rows, K}), DType::f32, 1), weight = draw(unit({V, K}), DType::f32, 2);
  const Tensor targets = draw(ids({rows}, V), DType::f32, 3);
  const auto gradients_on = [&](Device device) {
    Slot x_slot("x", true), weight_slot("weight", true);
    x_slot.set(to(x, device));
    weight_slot.set(to(weight, device));
    backward(linear_cross_entropy(x_slot.value(), weight_slot.value(), to(targets, device)));
    return Tensors{x_slot.grad(), weight_slot.grad()};
  };
  const Tensors expected = gradients_on(Device::cpu());
  gradients_on(kCuda);  // the products' workspace stays
  Accounting& memory = RankContext::current().device(kCuda).allocator().accounting();
  memory.reset_peaks();
  const std::int64_t before = memory.total();
  const Tensors actual = gradients_on(kCuda);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(near(actual[i], expected[i])) << i;
  const std::int64_t all = rows * V * 4, small = 5 * x.bytes() + 4 * rows * 8;
  EXPECT_LT(memory.total_peak() - before, 2 * all / 3 + small);
}

}  // namespace
}  // namespace sherd::testing
