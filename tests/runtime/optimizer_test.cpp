// Optimizer rows against the formulas written out in f64 here, and against PyTorch's steps in tests/golden/optim.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/cpu/parallel.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer.h"
#include "runtime/op/rows/optimizer_attrs.h"
#include "tests/support/draw.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

std::vector<Tensor> drawn(const std::vector<Shape>& shapes, DType dtype, std::uint64_t seed, Draw kind = Draw::normal) {
  std::vector<Tensor> list;
  for (const Shape& s : shapes) list.push_back(draw({.draw = kind, .shape = s}, dtype, seed++));
  return list;
}

std::vector<Tensor> zeros_of(const std::vector<Shape>& shapes, DType dtype) {
  std::vector<Tensor> list;
  for (const Shape& s : shapes) list.push_back(zeros(s, dtype));
  return list;
}

const std::vector<Shape> kShapes = {{3, 5}, {}, {0, 4}, {33}, {2, 1, 7}};

// One AdamW step on one element, in PyTorch's order.
void adamw_reference(double& p, double& m, double& v, double g, double lr, double t, const AdamWAttrs& a) {
  p *= 1 - lr * a.weight_decay;
  m = a.beta1 * m + (1 - a.beta1) * g;
  v = a.beta2 * v + (1 - a.beta2) * g * g;
  const double denominator = std::sqrt(v) / std::sqrt(1 - std::pow(a.beta2, t)) + a.eps;
  p -= lr / (1 - std::pow(a.beta1, t)) * m / denominator;
}

class AdamWTypes : public ::testing::TestWithParam<std::pair<DType, DType>> {};

TEST_P(AdamWTypes, FiveStepsAreTheFormula) {
  const auto [dtype, grad_dtype] = GetParam();
  const AdamWAttrs attrs{.beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1};
  const auto params = drawn(kShapes, dtype, 1), m = zeros_of(kShapes, dtype), v = zeros_of(kShapes, dtype);
  std::vector<std::vector<double>> p_exact, m_exact, v_exact;
  for (const Tensor& p : params) p_exact.push_back(p.to_vector<double>());
  for (const Tensor& t : m) m_exact.push_back(t.to_vector<double>());
  v_exact = m_exact;
  for (int t = 1; t <= 5; ++t) {
    const auto grads = drawn(kShapes, grad_dtype, 100 * static_cast<std::uint64_t>(t));
    adamw_step(params, m, v, grads, Tensor::scalar(0.25), Tensor::scalar(t), Tensor::scalar(0.5), attrs);
    for (std::size_t i = 0; i < params.size(); ++i) {
      const auto g = grads[i].to_vector<double>();
      for (std::size_t e = 0; e < g.size(); ++e)
        adamw_reference(p_exact[i][e], m_exact[i][e], v_exact[i][e], 0.5 * g[e], 0.25, t, attrs);
      EXPECT_TRUE(near(params[i], Tensor::from<double>(p_exact[i], params[i].shape()))) << "step " << t;
      EXPECT_TRUE(near(m[i], Tensor::from<double>(m_exact[i], m[i].shape()))) << "step " << t;
      EXPECT_TRUE(near(v[i], Tensor::from<double>(v_exact[i], v[i].shape()))) << "step " << t;
    }
  }
}

TEST_P(AdamWTypes, AScaleThatIsNotFiniteChangesNothing) {
  const auto [dtype, grad_dtype] = GetParam();
  for (const double scale : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const auto params = drawn(kShapes, dtype, 1), m = drawn(kShapes, dtype, 2), v = drawn(kShapes, dtype, 3);
    const auto grads = drawn(kShapes, grad_dtype, 4);
    adamw_step(params, m, v, grads, Tensor::scalar(0.25), Tensor::scalar(1), Tensor::scalar(scale), {});
    sgd_step(params, m, grads, Tensor::scalar(0.25), Tensor::scalar(scale), {.momentum = 0.9, .weight_decay = 0.1});
    sgd_step(params, {}, grads, Tensor::scalar(0.25), Tensor::scalar(scale), {.weight_decay = 0.1});
    const auto params_before = drawn(kShapes, dtype, 1), m_before = drawn(kShapes, dtype, 2);
    const auto v_before = drawn(kShapes, dtype, 3);
    for (std::size_t i = 0; i < params.size(); ++i) {
      EXPECT_TRUE(same_bits(params[i], params_before[i])) << "scale " << scale;
      EXPECT_TRUE(same_bits(m[i], m_before[i])) << "scale " << scale;
      EXPECT_TRUE(same_bits(v[i], v_before[i])) << "scale " << scale;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, AdamWTypes,
                         ::testing::Values(std::pair(DType::f64, DType::f64), std::pair(DType::f32, DType::f32),
                                           std::pair(DType::f32, DType::bf16), std::pair(DType::f32, DType::f16)));

Tensor golden_tensor(const GoldenTensor& t) {
  return Tensor::from<float>(t.f32, Shape(std::span<const std::int64_t>(t.shape)));
}

TEST(AdamW, FiveStepsArePyTorchs) {
  const Golden golden("optim");
  const AdamWAttrs attrs{.beta1 = golden.number("adamw", "beta1"),
                         .beta2 = golden.number("adamw", "beta2"),
                         .eps = golden.number("adamw", "eps"),
                         .weight_decay = golden.number("adamw", "weight_decay")};
  for (const std::string name : {"matrix", "vector"}) {
    const std::vector<Tensor> p = {golden_tensor(golden.at("adamw.in." + name))};
    const std::vector<Tensor> m = {zeros(p[0].shape())}, v = {zeros(p[0].shape())};
    for (int t = 1; t <= 5; ++t) {
      const std::vector<Tensor> g = {golden_tensor(golden.at(fmt::format("adamw.in.{}.grad_{}", name, t)))};
      adamw_step(p, m, v, g, Tensor::scalar(golden.number("adamw", "lr")), Tensor::scalar(t), Tensor::scalar(1), attrs);
      EXPECT_TRUE(near(p[0], golden_tensor(golden.at(fmt::format("adamw.out.{}.step_{}", name, t)))))
          << name << " step " << t;
    }
    EXPECT_TRUE(near(m[0], golden_tensor(golden.at("adamw.out." + name + ".m")), 1e-6));
    EXPECT_TRUE(near(v[0], golden_tensor(golden.at("adamw.out." + name + ".v")), 1e-6));
  }
}

TEST(Sgd, FiveStepsArePyTorchs) {
  const Golden golden("optim");
  for (const std::string test_case : {"sgd", "sgd_momentum"}) {
    const SgdAttrs attrs{.momentum = golden.number(test_case, "momentum"),
                         .weight_decay = golden.number(test_case, "weight_decay")};
    for (const std::string name : {"matrix", "vector"}) {
      const std::vector<Tensor> p = {golden_tensor(golden.at(test_case + ".in." + name))};
      std::vector<Tensor> momentum;
      if (attrs.momentum != 0) momentum.push_back(zeros(p[0].shape()));
      for (int t = 1; t <= 5; ++t) {
        const auto key = fmt::format("{}.in.{}.grad_{}", test_case, name, t);
        const std::vector<Tensor> g = {golden_tensor(golden.at(key))};
        sgd_step(p, momentum, g, Tensor::scalar(golden.number(test_case, "lr")), Tensor::scalar(1), attrs);
        EXPECT_TRUE(near(p[0], golden_tensor(golden.at(fmt::format("{}.out.{}.step_{}", test_case, name, t)))))
            << test_case << ' ' << name << " step " << t;
      }
    }
  }
}

TEST(Sgd, NesterovLooksAheadAndScaleAppliesBeforeDecay) {
  const SgdAttrs attrs{.momentum = 0.5, .weight_decay = 0.25, .nesterov = true};
  const std::vector<Tensor> p = {Tensor::from<double>({2.0}, {1})}, buffer = {Tensor::from<double>({4.0}, {1})};
  const std::vector<Tensor> g = {Tensor::from<double>({3.0}, {1})};
  sgd_step(p, buffer, g, Tensor::scalar(0.125), Tensor::scalar(2), attrs);
  const double update = 3 * 2 + 0.25 * 2, velocity = 0.5 * 4 + update;
  EXPECT_DOUBLE_EQ(buffer[0].item<double>(), velocity);
  EXPECT_DOUBLE_EQ(p[0].item<double>(), 2 - 0.125 * (update + 0.5 * velocity));
}

// Lists in one arena merge into one extent; the result must not change by that.
TEST(AdamW, NeighboursInOneArenaGetTheBitsOfSeparateTensors) {
  const std::vector<Shape> shapes = {{300, 17}, {5}, {0}, {40'000}, {1}};
  const AdamWAttrs attrs{.weight_decay = 0.01};
  const auto separate = [&](std::uint64_t seed, Draw kind = Draw::normal) {
    return drawn(shapes, DType::f32, seed, kind);
  };
  const auto arena = [&](const std::vector<Tensor>& list) {
    std::int64_t total = 0;
    for (const Tensor& t : list) total += t.numel();
    const Tensor whole = Tensor::empty({total}, DType::f32);
    std::vector<Tensor> parts;
    std::int64_t at = 0;
    for (const Tensor& t : list) {
      parts.push_back(Tensor::over(whole.storage(), t.shape(), contiguous_strides(t.shape()), at, DType::f32));
      copy_into(parts.back(), t);
      at += t.numel();
    }
    return parts;
  };
  const auto p = separate(1), m = separate(20), v = separate(40, Draw::positive), g = separate(60);
  const auto pa = arena(p), ma = arena(m), va = arena(v), ga = arena(g);
  const auto lr = Tensor::scalar(1e-2), step = Tensor::scalar(3), scale = Tensor::scalar(0.7);
  adamw_step(p, m, v, g, lr, step, scale, attrs);
  const int before = threads();
  set_threads(2);
  adamw_step(pa, ma, va, ga, lr, step, scale, attrs);
  set_threads(before);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_TRUE(same_bits(pa[i], p[i])) << i;
    EXPECT_TRUE(same_bits(ma[i], m[i])) << i;
    EXPECT_TRUE(same_bits(va[i], v[i])) << i;
  }
}

TEST(AdamW, WritesBumpVersionsOfStateButNotOfGradients) {
  const auto p = drawn({{4}}, DType::f32, 1), m = zeros_of({{4}}, DType::f32), v = zeros_of({{4}}, DType::f32),
             g = drawn({{4}}, DType::f32, 9);
  adamw_step(p, m, v, g, Tensor::scalar(0.1), Tensor::scalar(1), Tensor::scalar(1), {});
  EXPECT_EQ(p[0].storage()->version(), 1u);
  EXPECT_EQ(m[0].storage()->version(), 1u);
  EXPECT_EQ(v[0].storage()->version(), 1u);
  EXPECT_EQ(g[0].storage()->version(), 0u);
}

TEST(AdamW, StridedGradientsAreRead) {
  const auto p = drawn({{3, 4}}, DType::f64, 1), m = zeros_of({{3, 4}}, DType::f64), v = zeros_of({{3, 4}}, DType::f64);
  const std::vector<Tensor> q = {dense_copy(p[0])}, m2 = zeros_of({{3, 4}}, DType::f64),
                            v2 = zeros_of({{3, 4}}, DType::f64);
  const auto g = drawn({{3, 4}}, DType::f64, 7);
  const std::vector<Tensor> strided = {with_gaps(g[0])};
  const auto lr = Tensor::scalar(0.1), one = Tensor::scalar(1);
  adamw_step(p, m, v, g, lr, one, one, {});
  adamw_step(q, m2, v2, strided, lr, one, one, {});
  EXPECT_TRUE(same_bits(q[0], p[0]));
}

TEST(AdamW, WrongCallsSayWhat) {
  const auto one = Tensor::scalar(1);
  const auto p = drawn({{4}}, DType::f32, 1), s = zeros_of({{4}}, DType::f32), short_list = zeros_of({{3}}, DType::f32);
  const auto refused = [&](const std::vector<Tensor>& m, const std::vector<Tensor>& g, const Tensor& lr,
                           std::string_view part) {
    expect_error([&] { adamw_step(p, m, s, g, lr, one, one, {}); }, {part});
  };
  refused(short_list, p, one, "first moment 0 is f32[3], its parameter is f32[4]");
  refused(s, short_list, one, "gradient 0 is f32[3], its parameter is f32[4]");
  refused(s, {}, one, "0 gradients for 1 parameters");
  refused(s, p, zeros({2}), "lr is f32[2]");
  const auto half = drawn({{4}}, DType::bf16, 1);
  expect_error([&] { adamw_step(half, half, half, half, one, one, one, {}); }, {"parameter 0 is bf16[4]"});
  const std::vector<Tensor> strided = {with_gaps(p[0])};
  expect_error([&] { adamw_step(strided, s, s, p, one, one, one, {}); }, {"must be dense"});
  expect_error([&] { sgd_step(p, {}, p, one, one, {.nesterov = true}); }, {"momentum > 0"});
}

// ---- count_step ----

TEST(CountStep, AddsOneUnlessTheScaleIsNotFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f32, DType::f64}) {
    const std::vector<Tensor> counts = {Tensor::scalar(3), Tensor::scalar(0, DType::f64), Tensor::scalar(41)};
    const auto expect = [&](const std::vector<double>& expected) {
      for (std::size_t i = 0; i < counts.size(); ++i) EXPECT_EQ(counts[i].item<double>(), expected[i]) << i;
    };
    for (const double bad : {std::nan(""), kInfinity, -kInfinity}) count_step(counts, Tensor::scalar(bad, dtype));
    expect({3, 0, 41});
    for (const double good : {1.0, 0.0, -2.5e-30}) count_step(counts, Tensor::scalar(good, dtype));
    expect({6, 3, 44});
    EXPECT_EQ(counts[0].storage()->version(), 6u);
  }
  count_step({}, Tensor::scalar(1));
}

TEST(CountStep, WrongCallsSayWhat) {
  const std::vector<Tensor> pair = {zeros({2})}, whole = {zeros({}, DType::i64)}, one = {zeros({})};
  expect_error([&] { count_step(pair, Tensor::scalar(1)); }, {"a count is f32[2]", "one-element"});
  expect_error([&] { count_step(whole, Tensor::scalar(1)); }, {"a count is i64[]", "f32 or f64"});
  expect_error([&] { count_step(one, ones({3})); }, {"scale is f32[3]"});
}

// ---- power_sum ----

double power_sum_reference(const std::vector<Tensor>& list, double p) {
  long double total = 0;
  for (const Tensor& t : list)
    for (double x : t.to_vector<double>())
      total = std::isinf(p) ? std::max(total, static_cast<long double>(std::abs(x)))
                            : total + std::pow(std::abs(static_cast<long double>(x)), static_cast<long double>(p));
  return static_cast<double>(total);
}

TEST(PowerSum, IsTheFormulaForEveryPowerDtypeAndThreadCount) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (double p : {1.0, 2.0, 3.0, 2.5, infinity}) {
      auto list = drawn({{20'001}, {}, {0, 3}, {9, 77}, {8192}}, dtype, 3);
      list.push_back(with_gaps(list[3]));
      const Tensor total = power_sum(list, p);
      EXPECT_EQ(total.dtype(), DType::f64);
      EXPECT_EQ(total.ndim(), 0);
      const double expected = power_sum_reference(list, p);
      EXPECT_NEAR(total.item<double>(), expected, 1e-12 * expected) << name(dtype) << " p " << p;
      const int before = threads();
      set_threads(2);
      EXPECT_TRUE(same_bits(power_sum(list, p), total));
      set_threads(before);
    }
}

TEST(PowerSum, GoesOnFromAnotherOneWithTheBitsOfOneCall) {
  for (const double p : {1.0, 2.0, 2.5, std::numeric_limits<double>::infinity()}) {
    const auto list = drawn({{50'001}, {}, {9, 77}, {16'384}}, DType::f32, 3);
    Tensor total;
    for (const std::int64_t begin : {0, 8192, 40'960})
      total = power_sum_from(total,
                             std::vector<Tensor>{narrow(list[0], 0, begin,
                                                        (begin == 0      ? 8192
                                                         : begin == 8192 ? 40'960
                                                                         : 50'001) -
                                                            begin)},
                             p);
    total = power_sum_from(total, std::span(list).subspan(1), p);
    EXPECT_TRUE(same_bits(total, power_sum(list, p))) << p;
  }
  expect_error([] { power_sum_from(ones({}), std::vector<Tensor>{ones({3})}, 2); }, {"0-d f64"});
}

TEST(PowerSum, OfNothingIsZeroAndNaNStays) {
  EXPECT_EQ(power_sum({}, 2).item<double>(), 0);
  const std::vector<Tensor> empty = {zeros({0})};
  EXPECT_EQ(power_sum(empty, std::numeric_limits<double>::infinity()).item<double>(), 0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (double p : {2.0, std::numeric_limits<double>::infinity()})
    for (const std::vector<Tensor>& list : {std::vector<Tensor>{Tensor::from<float>({1, nan, 3}, {3})},
                                            std::vector<Tensor>{Tensor::from<float>({nan}, {1}), ones({20'000})}})
      EXPECT_TRUE(std::isnan(power_sum(list, p).item<double>()));
}

TEST(PowerSum, SumsInF64WhereF32WouldOverflowOrStandStill) {
  const std::vector<Tensor> large = {full({4}, 1e30)};
  EXPECT_NEAR(power_sum(large, 2).item<double>(), 4e60, 1e55);
  const std::vector<Tensor> many = {full({1}, 1e8), ones({10'000})};
  EXPECT_EQ(power_sum(many, 1).item<double>(), 1e8 + 10'000);
}

// Clipping composes from rows: scale = min(1, max_norm / (norm + 1e-6)).
TEST(PowerSum, ClippingByNormIsPyTorchs) {
  const Golden golden("optim");
  for (const std::string test_case : {"clip", "clip_below"}) {
    std::vector<Tensor> grads;
    for (const char* name : {"a", "b"}) grads.push_back(golden_tensor(golden.at(test_case + ".in." + name)));
    const Tensor norm = sqrt(power_sum(grads, 2));
    EXPECT_TRUE(near(cast(norm, DType::f32), golden_tensor(golden.at(test_case + ".out.norm")), 1e-6));
  }
}

}  // namespace
}  // namespace sherd::testing
