// The seam of matrix products. Oracle: the triple loop in f64. Both engines, all layouts, any size.
#include "runtime/cpu/gemm/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "runtime/cpu/parallel.h"
#include "runtime/tensor/error.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using cpu::Gemm;
using cpu::gemm;
using cpu::GemmBackend;
using cpu::UseGemmBackend;

// A buffer of one dtype, filled at random, read and written as doubles.
class Buffer {
 public:
  Buffer(DType dtype, std::int64_t count, unsigned seed)
      : dtype_(dtype), bytes_(static_cast<std::size_t>(std::max<std::int64_t>(count, 1) * byte_size(dtype))) {
    std::mt19937 engine(seed);
    std::uniform_real_distribution<double> uniform(-1, 1);
    visit_dtype(dtype, [&]<class T>(Type<T>) {
      for (std::int64_t i = 0; i < count; ++i) static_cast<T*>(data())[i] = convert<T>(uniform(engine));
    });
  }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  double at(std::int64_t i) const {
    return visit_dtype(dtype_, [&]<class T>(Type<T>) { return convert<double>(static_cast<const T*>(data())[i]); });
  }
  std::vector<double> values() const {
    std::vector<double> result(bytes_.size() / static_cast<std::size_t>(byte_size(dtype_)));
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = at(static_cast<std::int64_t>(i));
    return result;
  }
  bool same_bits(const Buffer& other) const { return bytes_ == other.bytes_; }

 private:
  DType dtype_;
  std::vector<std::byte> bytes_;
};

struct Operands {
  Buffer a, b, c, bias;
};

// Leading dimensions are `gap` larger than they must be, problems lie one after the other.
Gemm with_layout(Gemm g, std::int64_t gap) {
  g.lda = (g.transpose_a ? g.m : g.k) + gap;
  g.ldb = (g.transpose_b ? g.k : g.n) + gap;
  g.ldc = g.n + gap;
  g.stride_a = (g.transpose_a ? g.k : g.m) * g.lda;
  g.stride_b = (g.transpose_b ? g.n : g.k) * g.ldb;
  g.stride_c = g.m * g.ldc;
  return g;
}

Operands operands_for(const Gemm& g) {
  return {Buffer(g.dtype, g.batch * g.stride_a, 1), Buffer(g.dtype, g.batch * g.stride_b, 2),
          Buffer(g.result, g.batch * g.stride_c, 3), Buffer(g.result, g.n, 4)};
}

Buffer result_of(Gemm g, const Operands& x, bool with_bias = false) {
  Buffer c = x.c;
  if (with_bias) g.bias = x.bias.data();
  gemm(g, x.a.data(), x.b.data(), c.data());
  return c;
}

void expect_product(const Gemm& g, bool with_bias = false) {
  const Operands x = operands_for(g);
  const Buffer c = result_of(g, x, with_bias);
  const std::vector<double> a = x.a.values(), b = x.b.values();
  const auto in = [](const std::vector<double>& values, std::int64_t at) {
    return values[static_cast<std::size_t>(at)];
  };
  const double eps = g.result == DType::f64   ? 1e-15
                     : g.result == DType::f32 ? 6e-8
                     : g.result == DType::f16 ? 5e-4
                                              : 4e-3;
  for (std::int64_t p = 0; p < g.batch; ++p)
    for (std::int64_t i = 0; i < g.m; ++i)
      for (std::int64_t j = 0; j < g.ldc; ++j) {
        const std::int64_t at = p * g.stride_c + i * g.ldc + j;
        if (j >= g.n) {
          ASSERT_EQ(c.at(at), x.c.at(at)) << "wrote beyond column " << g.n;
          continue;
        }
        double expected = with_bias ? x.bias.at(j) : g.accumulate ? x.c.at(at) : 0, size = 1 + std::abs(expected);
        for (std::int64_t k = 0; k < g.k; ++k) {
          const double product = in(a, p * g.stride_a + (g.transpose_a ? k * g.lda + i : i * g.lda + k)) *
                                 in(b, p * g.stride_b + (g.transpose_b ? j * g.ldb + k : k * g.ldb + j));
          expected += product;
          size += std::abs(product);
        }
        // One rounding of the result, and f32 (f64) rounding of every partial sum.
        const double limit = eps * (1 + std::abs(expected)) + (g.result == DType::f64 ? 1e-15 : 1e-6) * size;
        ASSERT_NEAR(c.at(at), expected, limit) << "row " << i << " column " << j << " problem " << p;
      }
}

class GemmEngines : public ::testing::TestWithParam<GemmBackend> {
 protected:
  UseGemmBackend use_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Engine, GemmEngines, ::testing::Values(GemmBackend::library, GemmBackend::blocked),
                         [](const auto& which) { return which.param == GemmBackend::library ? "library" : "blocked"; });

TEST_P(GemmEngines, AllLayoutsOfOddSizes) {
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
           {1, 1, 1}, {7, 17, 5}, {13, 1, 33}, {1, 19, 65}, {33, 65, 1}, {200, 20, 270}, {10, 530, 30}, {70, 50, 801}})
    for (const DType t : {DType::f32, DType::bf16})
      for (const bool ta : {false, true})
        for (const bool tb : {false, true})
          for (const std::int64_t gap : {0, 3}) {
            SCOPED_TRACE(fmt::format("{} {}x{}x{} ta={} tb={} gap={}", name(t), m, n, k, ta, tb, gap));
            expect_product(with_layout(
                {.dtype = t, .result = t, .transpose_a = ta, .transpose_b = tb, .m = m, .n = n, .k = k}, gap));
          }
}

TEST_P(GemmEngines, EveryFloatingDType) {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const DType result : {t, byte_size(t) == 2 ? DType::f32 : t})
      for (const bool accumulate : {false, true})
        for (const std::int64_t m : {5, 21}) {
          SCOPED_TRACE(fmt::format("{} -> {} accumulate={} m={}", name(t), name(result), accumulate, m));
          expect_product(with_layout(
              {.dtype = t, .result = result, .transpose_b = true, .m = m, .n = 34, .k = 300, .accumulate = accumulate},
              1));
        }
}

TEST_P(GemmEngines, BiasIsAddedBeforeTheOneRounding) {
  for (const DType t : {DType::f64, DType::f32, DType::bf16})
    for (const std::int64_t m : {3, 9})
      for (const std::int64_t k : {64, 900})
        expect_product(with_layout({.dtype = t, .result = t, .transpose_b = true, .m = m, .n = 35, .k = k}, 2), true);
}

// Every element is seen once and final, in rectangles that do not depend on the number of threads.
TEST_P(GemmEngines, EpilogueSeesEveryElementOnce) {
  for (const auto& [t, m] : std::vector<std::pair<DType, std::int64_t>>{
           {DType::f32, 150}, {DType::bf16, 150}, {DType::f32, 4}, {DType::bf16, 4}}) {
    Gemm g = with_layout({.dtype = t, .result = t, .transpose_b = true, .m = m, .n = 1700, .k = 500}, 3);
    const Operands x = operands_for(g);
    const Buffer plain = result_of(g, x, true);
    Buffer c = x.c;
    std::vector<int> seen(static_cast<std::size_t>(g.m * g.n));
    const auto check_final = [&](std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
      for (std::int64_t i = row; i < row + rows; ++i)
        for (std::int64_t j = column; j < column + columns; ++j)
          seen[static_cast<std::size_t>(i * g.n + j)] += c.at(i * g.ldc + j) == plain.at(i * g.ldc + j) ? 1 : 1000;
    };
    const cpu::GemmEpilogue epilogue(check_final);
    g.epilogue = &epilogue;
    g.bias = x.bias.data();
    set_threads(2);
    gemm(g, x.a.data(), x.b.data(), c.data());
    set_threads(1);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), g.m * g.n) << name(t);
  }
}

TEST_P(GemmEngines, BatchesAndARepeatedOperand) {
  expect_product(with_layout({.m = 5, .n = 9, .k = 7, .batch = 6}, 1));
  Gemm repeated = with_layout({.m = 5, .n = 9, .k = 7, .batch = 6}, 0);
  repeated.stride_b = 0;
  const Operands x{Buffer(DType::f32, 6 * 35, 1), Buffer(DType::f32, 63, 2), Buffer(DType::f32, 6 * 45, 3),
                   Buffer(DType::f32, 9, 4)};
  const Buffer c = result_of(repeated, x);
  for (std::int64_t p = 0; p < 6; ++p) {
    double expected = 0;
    for (std::int64_t k = 0; k < 7; ++k) expected += x.a.at(p * 35 + 4 * 7 + k) * x.b.at(k * 9 + 8);
    EXPECT_NEAR(c.at(p * 45 + 44), expected, 1e-5);
  }
}

TEST_P(GemmEngines, EmptySizes) {
  expect_product(with_layout({.m = 0, .n = 4, .k = 3}, 0));
  expect_product(with_layout({.m = 4, .n = 0, .k = 3}, 0));
  expect_product(with_layout({.m = 4, .n = 5, .k = 0}, 1));                      // zeros
  expect_product(with_layout({.m = 4, .n = 5, .k = 0, .accumulate = true}, 1));  // unchanged
  expect_product(with_layout({.m = 4, .n = 5, .k = 0}, 1), true);                // bias
}

// Large enough to be split along both dims.
TEST_P(GemmEngines, SameBitsOnAnyNumberOfThreads) {
  for (const Gemm& g : {with_layout({.transpose_b = true, .m = 700, .n = 520, .k = 300}, 0),
                        with_layout({.transpose_a = true, .m = 130, .n = 120, .k = 9000}, 0),
                        with_layout({.m = 40, .n = 50, .k = 200, .batch = 130}, 0),
                        with_layout({.dtype = DType::bf16, .result = DType::bf16, .m = 1500, .n = 800, .k = 400}, 0)}) {
    const Operands x = operands_for(g);
    const Buffer serial = result_of(g, x);
    for (const int count : {2, 3}) {
      set_threads(count);
      const Buffer threaded = result_of(g, x);
      set_threads(1);
      EXPECT_TRUE(threaded.same_bits(serial)) << count << " threads";
    }
  }
}

TEST(Gemm, EnginesAgree) {
  const Gemm g = with_layout({.transpose_b = true, .m = 150, .n = 200, .k = 400}, 0);
  const Operands x = operands_for(g);
  const Buffer library = result_of(g, x);
  const UseGemmBackend use(GemmBackend::blocked);
  const Buffer blocked = result_of(g, x);
  for (std::int64_t i = 0; i < 150 * 200; ++i) ASSERT_NEAR(library.at(i), blocked.at(i), 2e-5) << i;
}

TEST(Gemm, ChoiceOfEngineEndsWithItsScope) {
  const Gemm g = with_layout({.m = 50, .n = 70, .k = 999}, 0);
  const Operands x = operands_for(g);
  const Buffer before = result_of(g, x);
  { const UseGemmBackend use(GemmBackend::blocked); }
  EXPECT_TRUE(result_of(g, x).same_bits(before));
}

TEST(Gemm, RefusesADtypeItDoesNotKnow) {
  Gemm g = with_layout({.dtype = DType::i32, .result = DType::i32, .m = 2, .n = 2, .k = 2}, 0);
  std::int32_t a[4] = {}, b[4] = {}, c[4] = {};
  expect_error([&] { gemm(g, a, b, c); }, {"i32", "not a floating-point type"});
  g = with_layout({.dtype = DType::f64, .result = DType::f32, .m = 1, .n = 1, .k = 1}, 0);
  double d[1] = {};
  float f[1] = {};
  expect_error([&] { gemm(g, d, d, f); }, {"f64", "f32"});
}

}  // namespace
}  // namespace sherd::testing
