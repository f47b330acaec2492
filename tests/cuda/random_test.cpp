// Random rows: the CPU's bits for any shard of a tensor, and the step read on the device. Rope: closed form.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/exec/context.h"
#include "runtime/op/rows/attention_attrs.h"
#include "runtime/op/rows/element_runs.h"
#include "runtime/op/rows/random_attrs.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/on_device.h"
#include "tests/support/boxes.h"
#include "tests/support/draw.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

constexpr std::uint64_t kKey = 0x853c49e6748fea9b;

class CudaRandom : public cuda::CudaTest {};
class CudaRope : public cuda::CudaTest {};

TEST_F(CudaRandom, AnyPartHasTheSameBits) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t first : {0, 1, 4, 7, 8, 4096, 4099})
      for (const std::int64_t n : {1, 6, 8, 2500}) {
        EXPECT_TRUE(same_bits(on_host(random_uniform({n}, kKey, -0.7, 1.9, first, dtype, {}, kCuda)),
                              random_uniform({n}, kKey, -0.7, 1.9, first, dtype)))
            << name(dtype) << ' ' << first << ' ' << n;
        EXPECT_TRUE(near(on_host(random_normal({n}, kKey, 0.5, 2, first, dtype, {}, kCuda)),
                         random_normal({n}, kKey, 0.5, 2, first, dtype),
                         std::max(tolerance(dtype), tolerance(DType::f32))))  // drawn in f32
            << name(dtype) << ' ' << first << ' ' << n;
      }
}

TEST_F(CudaRandom, NormalDiffersByRoundingOnly) {
  const auto here = random_normal({20'000}, kKey).to_vector<float>();
  const auto there = on_host(random_normal({20'000}, kKey, 0, 1, 0, DType::f32, {}, kCuda)).to_vector<float>();
  for (std::size_t i = 0; i < here.size(); ++i)
    ASSERT_NEAR(there[i], here[i], 4 * 0x1p-24f * std::fmax(std::fabs(here[i]), 1.0f)) << i;
}

TEST_F(CudaRandom, FarBeyond32BitsOfElements) {
  const std::int64_t first = (std::int64_t{1} << 35) + 5;
  EXPECT_TRUE(same_bits(on_host(random_uniform({33}, kKey, 0, 1, first, DType::f32, {}, kCuda)),
                        random_uniform({33}, kKey, 0, 1, first)));
}

TEST_F(CudaRandom, DropoutsMaskIsExact) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const double p : {0.1, 0.5, 1.0}) {
      const Tensor x = draw(normal({13, 40}), dtype, 1), turned = permute(x, {1, 0});
      EXPECT_TRUE(same_bits(on_host(dropout(on_device(x), p, kKey)), dropout(x, p, kKey))) << name(dtype) << p;
      EXPECT_TRUE(same_bits(on_host(dropout(on_device(turned), p, kKey, {}, 3)), dropout(turned, p, kKey, {}, 3)));
      EXPECT_TRUE(same_bits(on_host(dropout(on_device(x), p, kKey, {}, 3, 999)), dropout(x, p, kKey, {}, 3, 999)));
    }
}

TEST_F(CudaRandom, ABoxIsTheSliceOfTheWhole) {
  for (const Box& box : boxes()) {
    SCOPED_TRACE(box.text());
    std::int64_t first = 0;
    const ElementRuns runs = element_runs(box.global, box.local, box.offset, first);
    const RandomAttrs whole{.shape = box.global, .key = kKey, .device = kCuda};
    RandomAttrs part = whole;
    part.shape = box.local;
    part.first = first;
    part.runs = runs;
    EXPECT_TRUE(same_bits(on_host(call(op::random_normal, part)), box.of(on_host(call(op::random_normal, whole)))));
    const Tensor x = draw(normal(box.global), DType::bf16, 3);
    const DropoutAttrs dropped{.p = 0.4f, .key = kKey, .first = first, .runs = runs};
    EXPECT_TRUE(
        same_bits(on_host(call(op::dropout, dropped, on_device(box.of(x)), Tensor())), box.of(dropout(x, 0.4, kKey))));
  }
}

TEST_F(CudaRandom, ManyRunsOfVectors) {  // several blocks; the shard ends within a row of runs
  const RandomAttrs whole{.shape = {90, 4, 48}, .key = kKey, .device = kCuda};
  RandomAttrs part = whole;
  part.shape = {89 * 3 * 16};
  part.first = 48 + 24;
  part.runs = {.run = 16, .count = 3, .stride = 48, .outer_stride = 4 * 48};
  const Tensor all = on_host(call(op::random_uniform, whole));
  EXPECT_TRUE(same_bits(on_host(call(op::random_uniform, part)),
                        reshape(narrow(narrow(narrow(all, 0, 0, 89), 1, 1, 3), 2, 24, 16), part.shape)));
}

TEST_F(CudaRandom, ARecordedGraphReadsTheStep) {
  DeviceContext& context = RankContext::current().device(kCuda);
  const Tensor x = on_device(draw(normal({64}), DType::f32, 2)), step = on_device(full({}, 1, DType::i64));
  Tensor out = zeros({64}, DType::f32, kCuda);
  const auto graph = context.record([&] {
    std::vector<Tensor> in{x, step};
    call_op_into(op::dropout, in, DropoutAttrs{0.5f, kKey, 0}, out, false);
  });
  for (const double now : {1.0, 2.0}) {
    copy_into(step, full({}, now, DType::i64));
    graph->launch();
    EXPECT_TRUE(same_bits(on_host(out), dropout(on_host(x), 0.5, kKey, full({}, now, DType::i64)))) << now;
  }
}

// y of (batch, head, position, element) by the definition, in f64.
Tensor turned_by_definition(const Tensor& x, double theta, std::int64_t first) {
  const std::int64_t rows = x.size(0) * x.size(1), positions = x.size(2), pairs = x.size(3) / 2;
  const auto from = contiguous(x).to_vector<double>();
  std::vector<double> y(from.size());
  for (std::int64_t r = 0; r < rows * positions; ++r)
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(first + r % positions) *
                           std::pow(theta, -static_cast<double>(i) / static_cast<double>(pairs));
      const auto a = static_cast<std::size_t>(r * 2 * pairs + i), b = a + static_cast<std::size_t>(pairs);
      y[a] = from[a] * std::cos(angle) - from[b] * std::sin(angle);
      y[b] = from[b] * std::cos(angle) + from[a] * std::sin(angle);
    }
  return Tensor::from<double>(y, x.shape());
}

TEST_F(CudaRope, EqualsItsDefinition) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const Shape& shape :
         {Shape{2, 3, 9, 64}, Shape{1, 1, 300, 4}, Shape{1, 20, 1, 128}, Shape{1, 2, 3, 1040}, Shape{2, 2, 5, 6}}) {
      const Tensor x = draw(normal(shape), dtype, 3);
      EXPECT_TRUE(near(on_host(rope(on_device(x), 10000, 17)), turned_by_definition(x, 10000, 17), tolerance(dtype)))
          << describe(x);
    }
}

TEST_F(CudaRope, HeadsOfAProjectionStayInPlace) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = draw(normal({2, 7, 3, 32}), dtype, 4);  // [B, T, H, K]
    const Tensor there = rope(permute(on_device(x), {0, 2, 1, 3}));
    const Tensor here = rope(permute(x, {0, 2, 1, 3}));
    EXPECT_EQ(there.strides(), here.strides());
    EXPECT_TRUE(near(on_host(there), here));
    const Tensor apart = narrow(permute(x, {0, 2, 3, 1}), 3, 0, 6);  // elements of a row lie apart
    EXPECT_TRUE(near(on_host(rope(on_device(apart))), rope(apart)));
  }
}

TEST_F(CudaRope, TurnsBack) {
  const Tensor x = on_device(draw(normal({1, 2, 40, 16}), DType::f64, 5));
  const Tensor back = call(op::rope, RopeAttrs{10000, 3, true}, rope(x, 10000, 3));
  EXPECT_TRUE(near(on_host(back), on_host(x)));
}

}  // namespace
}  // namespace sherd::testing
