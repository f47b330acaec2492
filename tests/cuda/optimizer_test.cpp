// The optimizer rows on the device. The oracle is the update rule written out in f64, and for power_sum the closed
// form.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer.h"
#include "runtime/op/rows/optimizer_attrs.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/on_device.h"
#include "tests/support/draw.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

using CudaOptimizer = cuda::CudaTest;

using Values = std::vector<double>;

std::vector<Tensor> drawn(const std::vector<Shape>& shapes, Arg (*kind)(const Shape&), DType dtype,
                          std::uint64_t seed) {
  std::vector<Tensor> result;
  for (const Shape& s : shapes) result.push_back(draw(kind(s), dtype, ++seed));
  return result;
}

Tensor scalar_on_device(double value, DType dtype) { return to(Tensor::scalar(value, dtype), kCuda); }

/// One AdamW step in f64.
void reference_adamw(Values& p, Values& m, Values& v, const Values& g, double lr, double step, double scale,
                     const AdamWAttrs& a) {
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double grad = g[i] * scale;
    m[i] = a.beta1 * m[i] + (1 - a.beta1) * grad;
    v[i] = a.beta2 * v[i] + (1 - a.beta2) * grad * grad;
    const double m_hat = m[i] / (1 - std::pow(a.beta1, step)), v_hat = v[i] / (1 - std::pow(a.beta2, step));
    p[i] = p[i] * (1 - lr * a.weight_decay) - lr * m_hat / (std::sqrt(v_hat) + a.eps);
  }
}

void expect_values(const Tensor& actual, const Values& expected, double limit, const std::string& what) {
  const auto a = actual.to_vector<double>();
  ASSERT_EQ(a.size(), expected.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_LE(std::abs(a[i] - expected[i]), limit * (1 + std::abs(expected[i]))) << what << ", element " << i;
}

/// Two AdamW steps over `shapes` against the reference; gradients are a window from `skip` elements on, so that their
/// vectors may be unaligned.
void check_adamw(const std::vector<Shape>& shapes, DType dtype, DType grad_dtype, DType scalar_dtype,
                 std::int64_t skip) {
  const AdamWAttrs attrs{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  const std::vector<Tensor> p = all_to_device(drawn(shapes, normal, dtype, 1)),
                            m = all_to_device(drawn(shapes, normal, dtype, 100)),
                            v = all_to_device(drawn(shapes, positive, dtype, 200));
  std::vector<Tensor> g;
  for (const Tensor& t : p) {
    const Tensor flat = to(draw(normal({t.numel() + skip}), grad_dtype, 300 + g.size()), kCuda);
    g.push_back(Tensor::make(flat.storage(), t.shape(), contiguous_strides(t.shape()), skip, grad_dtype, kCuda));
  }
  std::vector<Values> ep, em, ev, eg;
  for (std::size_t i = 0; i < p.size(); ++i) {
    ep.push_back(p[i].to_vector<double>());
    em.push_back(m[i].to_vector<double>());
    ev.push_back(v[i].to_vector<double>());
    eg.push_back(g[i].to_vector<double>());
  }
  for (int step = 1; step <= 2; ++step) {
    adamw_step(p, m, v, g, scalar_on_device(0.01, scalar_dtype), scalar_on_device(step, scalar_dtype),
               scalar_on_device(0.5, scalar_dtype), attrs);
    for (std::size_t i = 0; i < p.size(); ++i) reference_adamw(ep[i], em[i], ev[i], eg[i], 0.01, step, 0.5, attrs);
  }
  // The f32 scalars are roundings of 0.01, 1, 2 and 0.5; only lr is inexact.
  const double limit = dtype == DType::f64 && scalar_dtype == DType::f64 ? 1e-12 : 2e-6;
  for (std::size_t i = 0; i < p.size(); ++i) {
    expect_values(p[i], ep[i], limit, "parameter " + std::to_string(i));
    expect_values(m[i], em[i], limit, "first moment " + std::to_string(i));
    expect_values(v[i], ev[i], limit, "second moment " + std::to_string(i));
  }
}

const std::vector<Shape> kSizes = {{3}, {8192}, {0, 4}, {}, {8193}, {2049}, {5, 4}};

TEST_F(CudaOptimizer, AdamWFollowsItsRule) { check_adamw(kSizes, DType::f32, DType::f32, DType::f32, 0); }
TEST_F(CudaOptimizer, AdamWInF64) { check_adamw(kSizes, DType::f64, DType::f64, DType::f64, 0); }
TEST_F(CudaOptimizer, AdamWTakesGradientsOf16Bits) {
  check_adamw(kSizes, DType::f32, DType::bf16, DType::f64, 0);
  check_adamw({{37}}, DType::f32, DType::f16, DType::f32, 0);
}
TEST_F(CudaOptimizer, AdamWTakesUnalignedGradients) {
  check_adamw({{1001}, {64}}, DType::f32, DType::f32, DType::f32, 1);
  check_adamw({{1001}, {64}}, DType::f32, DType::bf16, DType::f32, 3);
}
TEST_F(CudaOptimizer, MoreTensorsThanATableHolds) {
  check_adamw(std::vector<Shape>(170, Shape{7}), DType::f32, DType::f32, DType::f32, 0);
}

TEST_F(CudaOptimizer, MixedTypesInOneCall) {
  const Tensor p[] = {to(draw(normal({70}), DType::f32, 1), kCuda), to(draw(normal({9}), DType::f64, 2), kCuda),
                      to(draw(normal({33}), DType::f32, 3), kCuda)};
  const Tensor g[] = {to(draw(normal({70}), DType::bf16, 4), kCuda), to(draw(normal({9}), DType::f32, 5), kCuda),
                      to(draw(normal({33}), DType::f32, 6), kCuda)};
  std::vector<Values> expected;
  for (std::size_t i = 0; i < 3; ++i) {
    expected.push_back(p[i].to_vector<double>());
    const Values grad = g[i].to_vector<double>();
    for (std::size_t k = 0; k < grad.size(); ++k) expected[i][k] -= 0.25 * (2 * grad[k] + 0.5 * expected[i][k]);
  }
  sgd_step(p, {}, g, scalar_on_device(0.25, DType::f32), scalar_on_device(2, DType::f64), {.weight_decay = 0.5});
  for (std::size_t i = 0; i < 3; ++i) expect_values(p[i], expected[i], 1e-6, "parameter " + std::to_string(i));
}

TEST_F(CudaOptimizer, SgdWithNesterovsMomentum) {
  const Tensor p[] = {to(draw(normal({8201}), DType::f32, 1), kCuda)},
               m[] = {to(draw(normal({8201}), DType::f32, 2), kCuda)},
               g[] = {to(draw(normal({8201}), DType::f32, 3), kCuda)};
  Values ep = p[0].to_vector<double>(), em = m[0].to_vector<double>();
  const Values eg = g[0].to_vector<double>();
  for (std::size_t i = 0; i < ep.size(); ++i) {
    em[i] = 0.5 * em[i] + eg[i];
    ep[i] -= 0.125 * (eg[i] + 0.5 * em[i]);
  }
  sgd_step(p, m, g, scalar_on_device(0.125, DType::f32), scalar_on_device(1, DType::f32),
           {.momentum = 0.5, .nesterov = true});
  expect_values(p[0], ep, 1e-6, "parameter");
  expect_values(m[0], em, 1e-6, "momentum");
}

TEST_F(CudaOptimizer, CountsOfStepsGoUpUnlessTheScaleIsNotFinite) {
  std::vector<Tensor> counts;
  for (int i = 0; i < 170; ++i) counts.push_back(scalar_on_device(i, i % 3 == 0 ? DType::f64 : DType::f32));
  for (const double scale : {0.5, std::nan(""), std::numeric_limits<double>::infinity(), 0.0})
    count_step(counts, scalar_on_device(scale, DType::f32));
  for (std::size_t i = 0; i < counts.size(); ++i) EXPECT_EQ(counts[i].item<double>(), static_cast<double>(i) + 2) << i;
}

double reference_power_sum(const std::vector<Tensor>& tensors, double p) {
  double total = 0;
  for (const Tensor& t : tensors)
    for (double x : t.to_vector<double>())
      total = std::isinf(p) ? std::max(total, std::abs(x)) : total + std::pow(std::abs(x), p);
  return total;
}

TEST_F(CudaOptimizer, PowerSumOfMixedLists) {
  std::vector<Tensor> tensors = drawn({{20'000}, {7}, {0}, {}}, normal, DType::f32, 1);
  tensors.push_back(draw(normal({8195}), DType::bf16, 10));
  tensors.push_back(draw(normal({12}), DType::f64, 11));
  for (int i = 0; i < 90; ++i) tensors.push_back(draw(normal({5}), DType::f32, 20 + static_cast<std::uint64_t>(i)));
  const std::vector<Tensor> x = all_to_device(tensors);
  for (double p : {2.0, 1.0, 3.0, 2.5, std::numeric_limits<double>::infinity()}) {
    const double expected = reference_power_sum(tensors, p);
    EXPECT_NEAR(power_sum(x, p).item<double>(), expected, 1e-11 * expected) << "p = " << p;
  }
}

TEST_F(CudaOptimizer, PowerSumKeepsNaN) {
  for (double p : {2.0, 1.5, std::numeric_limits<double>::infinity()}) {
    const Tensor x[] = {to(Tensor::from<float>({1, std::numeric_limits<float>::quiet_NaN(), 3}, {3}), kCuda)};
    EXPECT_TRUE(std::isnan(power_sum(x, p).item<double>())) << "p = " << p;
  }
  EXPECT_EQ(power_sum({}, 2).item<double>(), 0);
}

TEST_F(CudaOptimizer, AScaleThatIsNotFiniteChangesNothing) {
  const std::vector<Shape> shapes = {{1000}, {7}};
  for (const double scale : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const auto draws = [&](std::uint64_t seed) { return all_to_device(drawn(shapes, normal, DType::f32, seed)); };
    const auto p = draws(1), m = draws(2), v = draws(3), g = draws(4);
    const Tensor lr = scalar_on_device(0.1, DType::f32), bad = scalar_on_device(scale, DType::f32);
    adamw_step(p, m, v, g, lr, scalar_on_device(1, DType::f32), bad, {});
    sgd_step(p, m, g, lr, bad, {.momentum = 0.9, .weight_decay = 0.1});
    for (std::size_t i = 0; i < p.size(); ++i) {
      EXPECT_EQ(p[i].to_vector<float>(), draws(1)[i].to_vector<float>());
      EXPECT_EQ(m[i].to_vector<float>(), draws(2)[i].to_vector<float>());
      EXPECT_EQ(v[i].to_vector<float>(), draws(3)[i].to_vector<float>());
    }
  }
}

}  // namespace
}  // namespace sherd::testing
