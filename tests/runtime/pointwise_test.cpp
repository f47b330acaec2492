// Oracles: the C library in double, closed forms, central differences.
#include <gtest/gtest.h>

#include <limits>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/cpu/parallel.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/grad_check.h"
#include "tests/support/near.h"

namespace sherd {
namespace {

using testing::grad_check;
using testing::near;
using testing::same_bits;
using Doubles = std::vector<double>;
using Ints = std::vector<std::int64_t>;
using Bools = std::vector<bool>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Largest error of an f32 row, in units in the last place of the exact result, over floats spread evenly in their bit
// patterns from -to to `to` (or from 0).
double worst_ulp(Tensor (*row)(Tensor), double (*exact)(double), float to, bool both_signs = true) {
  std::vector<float> inputs;
  const auto last = std::bit_cast<std::uint32_t>(to);
  for (std::uint32_t u = 0; u <= last; u += 4099) {
    inputs.push_back(std::bit_cast<float>(u));
    if (both_signs) inputs.push_back(-inputs.back());
  }
  const Tensor x = Tensor::from(std::span<const float>(inputs), {static_cast<std::int64_t>(inputs.size())});
  const auto y = row(x).to_vector<float>();
  double worst = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double e = exact(static_cast<double>(inputs[i]));
    if (static_cast<float>(e) == y[i]) continue;
    int exponent = 0;
    std::frexp(e, &exponent);
    const double error = std::abs(static_cast<double>(y[i]) - e) / std::ldexp(1.0, std::max(exponent - 24, -149));
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

TEST(Pointwise, FunctionsAreWithinTwoUlpEverywhere) {
  EXPECT_LE(worst_ulp(exp, std::exp, 200.0f), 1.0);
  EXPECT_LE(worst_ulp(log, std::log, 3.4e38f, false), 1.0);
  EXPECT_LE(worst_ulp(tanh, std::tanh, 100.0f), 1.5);
  EXPECT_LE(worst_ulp(erf, std::erf, 100.0f), 1.0);
  EXPECT_LE(worst_ulp(sin, std::sin, 1e6f), 1.0);
  EXPECT_LE(worst_ulp(cos, std::cos, 1e6f), 1.0);
  EXPECT_LE(worst_ulp(sqrt, std::sqrt, 3.4e38f, false), 0.5);
}

TEST(Pointwise, EdgesOfTheFloatRange) {
  const Tensor x = Tensor::from<float>({kInf, -kInf, kNan, 0, -0.0f, 89, -104, 0x1p-149f}, {8});
  const auto is = [](const Tensor& actual, const Doubles& expected) {
    EXPECT_TRUE(near(actual, Tensor::from<double>(std::span<const double>(expected), {8}), 1e-6));
  };
  is(exp(x), {kInf, 0, kNan, 1, 1, kInf, 0, 1});
  is(log(x), {kInf, kNan, kNan, -kInf, -kInf, std::log(89.0), kNan, -103.27892990343185});
  is(tanh(x), {1, -1, kNan, 0, -0.0, 1, -1, 0});
  is(erf(x), {1, -1, kNan, 0, -0.0, 1, -1, 0});
  is(sigmoid(x), {1, 0, kNan, 0.5, 0.5, 1, 0, 0.5});
  is(relu(x), {kInf, 0, kNan, 0, 0, 89, 0, 0});
  is(abs(x), {kInf, kInf, kNan, 0, 0, 89, 104, 0});
  EXPECT_TRUE(std::signbit(tanh(x).to_vector<float>()[4]));
}

TEST(Pointwise, BulkAndTailOfALoopGiveTheSameBits) {
  const Tensor x = mul(random_normal({1027}, 1), 4);
  for (auto* row : {exp, log, tanh, erf, sigmoid, silu, sin}) {
    const Tensor whole = row(x);
    for (std::int64_t i : {0, 1, 7, 8, 500, 1026})
      EXPECT_TRUE(same_bits(row(narrow(x, 0, i, 1)), narrow(whole, 0, i, 1)));
    EXPECT_TRUE(same_bits(row(narrow(x, 0, 3, 1024)), narrow(whole, 0, 3, 1024))) << "another alignment";
  }
}

// In f32 by whole vectors with a short exponential, in f64 by the functors over the C library.
TEST(Pointwise, SiluFamilyOverItsWholeDomain) {
  std::vector<float> grid = {-1e10f, -1e4f, -0.0f, 0x1p-140f, 1e4f, 1e10f, kNan};
  for (float x = -110; x < 110; x += 0.37f) grid.push_back(x);
  const auto size = static_cast<std::int64_t>(grid.size());
  const Tensor x = Tensor::from<float>(std::span<const float>(grid), {size});
  const Tensor grad = random_normal({size}, 1), up = random_normal({size}, 2);
  const auto check = [](std::string_view name, std::vector<Tensor> in) {
    std::vector<Tensor> wide;
    for (const Tensor& t : in) wide.push_back(cast(t, DType::f64));
    const Tensors actual = call_op(find_op(name), in, {}), expected = call_op(find_op(name), wide, {});
    for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(near(actual[i], expected[i], 1e-6)) << name << i;
  };
  check("silu", {x});
  check("gelu_tanh", {x});
  check("swiglu", {x, up});
  check("silu_backward", {grad, x});
  check("gelu_tanh_backward", {grad, x});
  check("swiglu_backward", {grad, x, up});
  check("silu", {full({3}, -3e38, DType::f32)});  // 0, not -3e38 times the least normal number
}

// In 16 bits: the result of f32, rounded once, whether the tensors are dense or not. The f32 one is checked above.
TEST(Pointwise, SixteenBitsAreTheResultOfF32RoundedOnce) {
  struct Row {
    std::string_view name;
    std::size_t inputs;
  };
  constexpr Row rows[] = {{"add", 2},
                          {"silu", 1},
                          {"gelu_tanh", 1},
                          {"swiglu", 2},
                          {"silu_backward", 2},
                          {"gelu_tanh_backward", 2},
                          {"swiglu_backward", 3}};
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const Row& row : rows) {
      std::vector<Tensor> in, widened, strided;
      for (std::size_t i = 0; i < row.inputs; ++i) {
        in.push_back(cast(mul(random_normal({31, 37}, i), 4), dtype));
        widened.push_back(cast(in.back(), DType::f32));
        strided.push_back(transpose(contiguous(transpose(in.back(), 0, 1)), 0, 1));
      }
      const Tensors dense = call_op(find_op(row.name), in, {}), apart = call_op(find_op(row.name), strided, {});
      const Tensors expected = call_op(find_op(row.name), widened, {});
      for (std::size_t i = 0; i < dense.size(); ++i) {
        EXPECT_TRUE(same_bits(dense[i], cast(expected[i], dtype))) << row.name << i << " of " << name(dtype);
        EXPECT_TRUE(same_bits(apart[i], dense[i])) << row.name << i << " of " << name(dtype) << ", strided";
      }
    }
}

// Closed forms in double, as PyTorch documents its functions of these names.
TEST(Pointwise, ActivationsMatchTheirFormulas) {
  const Tensor x = Tensor::from<double>({-2, -0.5, 0, 1, 3}, {5});
  const auto is = [](const Tensor& actual, std::initializer_list<double> expected) {
    EXPECT_TRUE(near(actual, Tensor::from<double>(expected, {5}), 1e-12));
  };
  is(gelu(x), {-0.04550026389635842, -0.15426876936299344, 0, 0.8413447460685429, 2.99595030590511});
  is(gelu_tanh(x), {-0.04540230591222494, -0.15428599017485606, 0, 0.8411919906082768, 2.996362607918227});
  is(silu(x), {-0.2384058440442351, -0.1887703343990727, 0, 0.7310585786300049, 2.8577223804673});
  is(sigmoid(x), {0.11920292202211755, 0.3775406687981454, 0.5, 0.7310585786300049, 0.9525741268224334});
  is(swiglu(x, full({5}, 2, DType::f64)),
     {-0.4768116880884702, -0.3775406687981454, 0, 1.4621171572600098, 5.7154447609346});
}

TEST(Pointwise, BroadcastingReadsStridesOfEveryKind) {
  const Tensor x = reshape(arange(24), {2, 3, 4});
  const Tensor t = permute(x, {2, 0, 1});  // [4, 2, 3]
  const Tensor row = Tensor::from<std::int64_t>({100, 200, 300}, {3});
  const auto v = add(t, row).to_vector<std::int64_t>();
  std::size_t at = 0;
  for (std::int64_t k = 0; k < 4; ++k)
    for (std::int64_t i = 0; i < 2; ++i)
      for (std::int64_t j = 0; j < 3; ++j) EXPECT_EQ(v[at++], i * 12 + j * 4 + k + 100 * (j + 1));
  EXPECT_EQ(mul(Tensor::from<std::int64_t>({1, 2}, {2, 1}), row).to_vector<std::int64_t>(),
            (Ints{100, 200, 300, 200, 400, 600}));
  EXPECT_EQ(add(zeros({0, 3}), ones({1, 3})).shape(), (Shape{0, 3}));
  EXPECT_EQ(add(Tensor::scalar(1), Tensor::scalar(2)).shape(), (Shape{}));
}

TEST(Pointwise, LongStridedInputsMatchDenseOnes) {
  const Tensor x = random_normal({301, 517}, 2), y = random_normal({517, 301}, 3);
  const Tensor strided = add(x, transpose(y, 0, 1));
  EXPECT_TRUE(same_bits(strided, add(x, contiguous(transpose(y, 0, 1)))));
  set_threads(3);
  const Tensor threaded = add(x, transpose(y, 0, 1));
  set_threads(1);
  EXPECT_TRUE(same_bits(threaded, strided));
}

TEST(Pointwise, PromotesAndRoundsOnce) {
  const Tensor a = Tensor::from<bf16>({bf16(1.0f), bf16(256.0f)}, {2});
  EXPECT_EQ(add(a, a).dtype(), DType::bf16);
  EXPECT_EQ(add(a, ones({2}, DType::bf16)).to_vector<double>(), (Doubles{2, 256})) << "257 has no bf16";
  EXPECT_EQ(add(a, ones({2}, DType::f16)).dtype(), DType::f32);
  EXPECT_EQ(mul(a, arange(2)).dtype(), DType::bf16);
  EXPECT_EQ(add(arange(2), ones({2}, DType::u8)).dtype(), DType::i64);
  EXPECT_EQ(exp(arange(2)).dtype(), DType::f32);
  EXPECT_EQ(div(arange(3), full({3}, 2, DType::i64)).to_vector<double>(), (Doubles{0, 0.5, 1}));
  // gelu of bf16 is computed in f32 and rounded once: as the f32 result, rounded.
  const Tensor x = cast(random_normal({700}, 5), DType::bf16);
  EXPECT_TRUE(same_bits(gelu(x), cast(gelu(cast(x, DType::f32)), DType::bf16)));
}

TEST(Pointwise, IntegersWrapAndBoolsAreLogic) {
  const Tensor u = Tensor::from<std::uint8_t>({250, 3}, {2});
  EXPECT_EQ(add(u, u).to_vector<std::int64_t>(), (Ints{244, 6}));
  EXPECT_EQ(neg(u).to_vector<std::int64_t>(), (Ints{6, 253}));
  const Tensor top = Tensor::from<std::int64_t>({std::numeric_limits<std::int64_t>::max()}, {1});
  EXPECT_EQ(add(top, 1).to_vector<std::int64_t>(), (Ints{std::numeric_limits<std::int64_t>::min()}));
  const Tensor p = Tensor::from<bool>({true, true, false, false}, {4});
  const Tensor q = Tensor::from<bool>({true, false, true, false}, {4});
  EXPECT_EQ(add(p, q).to_vector<bool>(), (Bools{true, true, true, false}));
  EXPECT_EQ(mul(p, q).to_vector<bool>(), (Bools{true, false, false, false}));
  EXPECT_EQ(logical_and(p, q).to_vector<bool>(), (Bools{true, false, false, false}));
  EXPECT_EQ(logical_or(p, q).to_vector<bool>(), (Bools{true, true, true, false}));
  EXPECT_EQ(logical_not(p).to_vector<bool>(), (Bools{false, false, true, true}));
  EXPECT_EQ(pow(Tensor::from<std::int64_t>({-3, 2}, {2}), 5).to_vector<std::int64_t>(), (Ints{-243, 32}));
}

TEST(Pointwise, ComparisonsAreBoolAndNanIsUnequal) {
  const Tensor a = Tensor::from<float>({1, 2, kNan}, {3}), b = Tensor::from<float>({2, 2, kNan}, {3});
  EXPECT_EQ(equal(a, b).to_vector<bool>(), (Bools{false, true, false}));
  EXPECT_EQ(not_equal(a, b).to_vector<bool>(), (Bools{true, false, true}));
  EXPECT_EQ(less(a, b).to_vector<bool>(), (Bools{true, false, false}));
  EXPECT_EQ(less_equal(a, b).to_vector<bool>(), (Bools{true, true, false}));
  EXPECT_EQ(greater(a, b).to_vector<bool>(), (Bools{false, false, false}));
  EXPECT_EQ(greater_equal(a, b).to_vector<bool>(), (Bools{false, true, false}));
  const std::int64_t big = (std::int64_t{1} << 53) + 1;
  EXPECT_FALSE(equal(Tensor::from<std::int64_t>({big}, {1}), Tensor::from<std::int64_t>({big - 1}, {1})).item<bool>())
      << "integers compare as integers";
}

TEST(Pointwise, WhereClampAndExtremes) {
  const Tensor c = Tensor::from<bool>({true, false}, {2, 1});
  EXPECT_EQ(where(c, Tensor::scalar(1), Tensor::from<float>({7, 8}, {2})).to_vector<double>(), (Doubles{1, 1, 7, 8}));
  const Tensor x = Tensor::from<float>({-5, 0.5f, 5, kNan}, {4});
  const auto clamped = clamp(x, -1, 1).to_vector<double>();
  EXPECT_EQ(Doubles(clamped.begin(), clamped.begin() + 3), (Doubles{-1, 0.5, 1}));
  EXPECT_TRUE(std::isnan(clamped[3]));
  EXPECT_EQ(clamp(arange(4), 1, kInf).to_vector<std::int64_t>(), (Ints{1, 1, 2, 3}));
  EXPECT_TRUE(std::isnan(maximum(x, zeros({4})).to_vector<double>()[3]));
  EXPECT_TRUE(std::isnan(minimum(zeros({4}), x).to_vector<double>()[3]));
}

TEST(Pointwise, WrongCallsSayWhatIsWrong) {
  const auto message = [](const auto& fn) -> std::string {
    try {
      fn();
    } catch (const Error& e) { return e.what(); }
    return "no error";
  };
  EXPECT_EQ(message([] { add(zeros({2, 3}), zeros({4})); }),
            "shapes [2,3] and [4] do not broadcast: 3 and 4 at dim -1\n  op      add\n  inputs  f32[2,3]  f32[4]");
  EXPECT_NE(message([] { add(Tensor(), zeros({4})); }).find("input 0 of add is empty"), std::string::npos);
  EXPECT_NE(message([] { add(arange(2), 0.5); }).find("integral constant"), std::string::npos);
  EXPECT_NE(message([] { pow(arange(2), -1); }).find("negative powers"), std::string::npos);
  EXPECT_NE(message([] { sub(ones({1}, DType::boolean), ones({1}, DType::boolean)); }).find("bool"), std::string::npos);
  EXPECT_NE(message([] { where(ones({1}), ones({1}), ones({1})); }).find("bool condition"), std::string::npos);
  EXPECT_NE(message([] { clamp(ones({1}), 2, 1); }).find("above the high end"), std::string::npos);
}

TEST(Pointwise, AMovedInputGivesItsMemory) {
  Tensor a = random_normal({100}, 1);
  const Tensor expected = exp(a);
  const void* bytes = a.raw();
  const Tensor b = exp(std::move(a));
  EXPECT_EQ(b.raw(), bytes);
  EXPECT_TRUE(same_bits(b, expected));
}

TEST(Pointwise, MemoryThatOthersReadIsNotReused) {
  Tensor a = ones({4});
  const Tensor kept = a;
  EXPECT_NE(neg(std::move(a)).raw(), kept.raw()) << "another handle";
  Tensor b = ones({4});
  const Tensor half = narrow(b, 0, 0, 2);
  EXPECT_NE(neg(std::move(b)).raw(), half.raw()) << "a view";
  EXPECT_EQ(half.to_vector<double>(), (Doubles{1, 1}));
  Tensor c = ones({4});
  const void* bytes = c.raw();
  EXPECT_NE(equal(std::move(c), zeros({4})).raw(), bytes) << "another dtype";
  Slot slot("w", true);
  slot.set(ones({4}));
  Tensor d = exp(slot.value());
  const void* saved = d.raw();
  const Tensor e = square(std::move(d));  // the tape keeps d
  EXPECT_NE(e.raw(), saved);
}

TEST(Pointwise, TwoResultRowsWorkOverADonatedInput) {
  const Tensor grad = random_normal({2000}, 1), gate = random_normal({2000}, 2), up = random_normal({2000}, 3);
  Tensor kept[] = {grad, gate, up};
  const Tensors expected = call_op(op::swiglu_backward, kept, {});
  Tensor moved[] = {add(grad, 0), add(gate, 0), add(up, 0)};
  const Tensors actual = call_op(op::swiglu_backward, moved, {});
  EXPECT_TRUE(same_bits(actual[0], expected[0]));
  EXPECT_TRUE(same_bits(actual[1], expected[1]));
}

TEST(Pointwise, IsfiniteSeesEveryKindOfNumber) {
  using Limits = std::numeric_limits<float>;
  const std::vector<float> values{0, -0.0f, 1, Limits::max(), Limits::denorm_min(), kInf, -kInf, kNan, -kNan};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const bool max_fits = byte_size(dtype) > 2;  // in 16 bits it rounds to infinity
    EXPECT_EQ(isfinite(cast(Tensor::from<float>(values, {9}), dtype)).to_vector<bool>(),
              (Bools{true, true, true, max_fits, true, false, false, false, false}))
        << name(dtype);
  }
}

TEST(Pointwise, GradientsOfBroadcastInputsAreSummed) {
  const Tensor inputs[] = {cast(random_normal({2, 3, 4}, 1), DType::f64), cast(random_normal({3, 1}, 2), DType::f64),
                           cast(add(random_uniform({4}, 3), 0.5), DType::f64)};
  const auto check = [&](std::size_t i, std::size_t j, Tensor (*row)(Tensor, Tensor)) {
    const Tensor pair[] = {inputs[i], inputs[j]};
    EXPECT_TRUE(grad_check([row](std::span<const Tensor> in) { return row(in[0], in[1]); }, pair)) << i << j;
  };
  check(0, 1, add);
  check(1, 0, sub);
  check(1, 2, mul);
  check(1, 2, div);
  check(0, 1, maximum);
  check(1, 0, minimum);
  check(1, 0, swiglu);
  const Tensor condition = greater(inputs[0], Tensor::scalar(0));
  EXPECT_TRUE(grad_check([&](std::span<const Tensor> in) { return where(condition, in[0], in[1]); },
                         std::span(inputs).subspan(1)));
}

TEST(Pointwise, GradientsOfUnaryRows) {
  const Tensor x = cast(random_normal({50}, 4), DType::f64);
  const Tensor p = add(square(x), 0.25);
  for (auto* row : {neg, abs, square, exp, sin, cos, tanh, erf, sigmoid, relu, silu, gelu, gelu_tanh})
    EXPECT_TRUE(grad_check([row](std::span<const Tensor> in) { return row(in[0]); }, std::span(&x, 1)));
  for (auto* row : {log, sqrt, rsqrt, reciprocal})
    EXPECT_TRUE(grad_check([row](std::span<const Tensor> in) { return row(in[0]); }, std::span(&p, 1)));
  for (double n : {0.0, 1.0, 2.0, -1.5})
    EXPECT_TRUE(grad_check([n](std::span<const Tensor> in) { return pow(in[0], n); }, std::span(&p, 1)));
  EXPECT_TRUE(grad_check([](std::span<const Tensor> in) { return clamp(in[0], -0.5, 0.75); }, std::span(&x, 1)));
}

TEST(Pointwise, GradientsKeepTheDtypeOfTheirInput) {
  Slot a("a", true), b("b", true);
  a.set(ones({3}, DType::bf16));
  b.set(full({2, 3}, 2, DType::f32));
  backward(sum(mul(a.value(), b.value())));
  EXPECT_EQ(a.grad().dtype(), DType::bf16);
  EXPECT_EQ(a.grad().to_vector<double>(), (Doubles{4, 4, 4}));
  EXPECT_EQ(b.grad().dtype(), DType::f32);
  EXPECT_EQ(b.grad().to_vector<double>(), (Doubles{1, 1, 1, 1, 1, 1}));
}

TEST(Pointwise, TiesOfExtremesShareAndPowersOfZeroHaveNoSlope) {
  const Tensor x[] = {zeros({2}, DType::f64), zeros({2}, DType::f64)};
  const auto g =
      testing::gradients([](std::span<const Tensor> in) { return maximum(in[0], in[1]); }, x, ones({2}, DType::f64));
  EXPECT_EQ(g[0].to_vector<double>(), (Doubles{0.5, 0.5}));
  EXPECT_EQ(g[1].to_vector<double>(), (Doubles{0.5, 0.5}));
  const auto p = testing::gradients([](std::span<const Tensor> in) { return pow(in[0], 0); }, std::span(x, 1),
                                    ones({2}, DType::f64));
  EXPECT_EQ(p[0].to_vector<double>(), (Doubles{0, 0}));
}

TEST(Pointwise, MetaTensorsHaveShapesOnly) {
  const Tensor a = zeros({2, 3}, DType::bf16, Device::meta());
  const Tensor b = add(exp(a), zeros({3}, DType::f32, Device::meta()));
  EXPECT_TRUE(b.is_meta());
  EXPECT_EQ(b.dtype(), DType::f32);
  EXPECT_EQ(b.shape(), (Shape{2, 3}));
}

}  // namespace
}  // namespace sherd
