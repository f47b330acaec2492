// gemm() against a triple loop in f64, over layouts, types, batches, biases and alignments. The bound is that of the
// arithmetic: K roundings of the accumulator against the sum of |a b|, and one rounding of the result.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "runtime/cuda/device/context.h"
#include "runtime/cuda/gemm/gemm.h"
#include "runtime/cuda/gemm/gemm_plan.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/expect_error.h"

namespace sherd::cuda {

namespace {

class CudaGemm : public CudaTest {};

double unit_roundoff(DType t) {
  switch (t) {
    case DType::f64: return 0x1p-53;
    case DType::f32: return 0x1p-24;
    case DType::f16: return 0x1p-11;
    default: return 0x1p-8;
  }
}

double load(DType t, const std::byte* bytes, std::int64_t i) {
  switch (t) {
    case DType::f64: return reinterpret_cast<const double*>(bytes)[i];
    case DType::f32: return reinterpret_cast<const float*>(bytes)[i];
    case DType::f16: return static_cast<float>(reinterpret_cast<const f16*>(bytes)[i]);
    default: return static_cast<float>(reinterpret_cast<const bf16*>(bytes)[i]);
  }
}

void store(DType t, std::byte* bytes, std::int64_t i, double v) {
  switch (t) {
    case DType::f64: reinterpret_cast<double*>(bytes)[i] = v; return;
    case DType::f32: reinterpret_cast<float*>(bytes)[i] = static_cast<float>(v); return;
    case DType::f16: reinterpret_cast<f16*>(bytes)[i] = f16(static_cast<float>(v)); return;
    default: reinterpret_cast<bf16*>(bytes)[i] = bf16(static_cast<float>(v)); return;
  }
}

// Values in host memory and a copy on the device, `skip` elements behind an address aligned to 256.
class Values {
 public:
  Values(Context& context, DType dtype, std::int64_t count, std::int64_t skip, unsigned seed)
      : context_(context),
        dtype_(dtype),
        skip_(skip),
        host_(static_cast<std::size_t>((count + skip) * byte_size(dtype))),
        device_(context, static_cast<std::int64_t>(host_.size())) {
    std::uint32_t state = seed * 2654435761u + 1;
    for (std::int64_t i = 0; i < count + skip; ++i) {
      state = state * 1664525u + 1013904223u;
      store(dtype, host_.data(), i, (static_cast<double>(state >> 8) / 0x1p23) - 1);
    }
    context.upload(device_.data(), host_.data(), device_.bytes());
  }
  void* device() const { return device_.data() + skip_ * byte_size(dtype_); }
  double operator[](std::int64_t i) const { return load(dtype_, host_.data(), i + skip_); }
  std::vector<double> read() const {
    std::vector<std::byte> bytes(host_.size());
    context_.download(bytes.data(), device_.data(), device_.bytes());
    std::vector<double> values;
    for (std::int64_t i = skip_; i * byte_size(dtype_) < static_cast<std::int64_t>(bytes.size()); ++i)
      values.push_back(load(dtype_, bytes.data(), i));
    return values;
  }

 private:
  Context& context_;
  const DType dtype_;
  const std::int64_t skip_;
  std::vector<std::byte> host_;
  Workspace device_;
};

struct Extras {
  bool bias = false;
  std::int64_t pad = 0;                  // elements between rows beyond what they take
  std::int64_t skip = 0, bias_skip = 0;  // elements that addresses are off
  bool repeat_b = false;
};

void expect_product(Context& context, Gemm g, const Extras& extras = {}) {
  const std::int64_t rows_a = g.transpose_a ? g.k : g.m, rows_b = g.transpose_b ? g.n : g.k;
  g.lda = (g.transpose_a ? g.m : g.k) + extras.pad;
  g.ldb = (g.transpose_b ? g.k : g.n) + extras.pad;
  g.ldc = g.n + extras.pad;
  g.stride_a = rows_a * g.lda;
  g.stride_b = extras.repeat_b ? 0 : rows_b * g.ldb;
  g.stride_c = g.m * g.ldc;
  const Values a(context, g.dtype, g.batch * g.stride_a, extras.skip, 1);
  const Values b(context, g.dtype, std::max(g.batch * g.stride_b, rows_b * g.ldb), extras.skip, 2);
  const Values c(context, g.result, g.batch * g.stride_c, extras.skip, 3);
  const Values bias(context, g.result, g.n, extras.bias_skip, 4);
  if (extras.bias) g.bias = bias.device();
  SCOPED_TRACE(fmt::format("{} to {}, {}{}, {}x{}x{}, batch {}, alpha {}{}{}, pad {}, skip {} {}", name(g.dtype),
                           name(g.result), g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k, g.batch,
                           g.alpha, g.accumulate ? ", accumulates" : "", g.bias ? ", bias" : "", extras.pad,
                           extras.skip, extras.bias_skip));
  gemm(context, g, a.device(), b.device(), c.device());
  const std::vector<double> result = c.read();
  const double sum_error =
      unit_roundoff(g.dtype == DType::f64 ? DType::f64 : DType::f32) * static_cast<double>(g.k + 4);
  for (std::int64_t p = 0; p < g.batch; ++p)
    for (std::int64_t i = 0; i < g.m; ++i)
      for (std::int64_t j = 0; j < g.ldc; ++j) {
        const std::int64_t at = p * g.stride_c + i * g.ldc + j;
        if (j >= g.n) {
          ASSERT_EQ(result[static_cast<std::size_t>(at)], c[at]) << "written between rows, at " << i << ", " << j;
          continue;
        }
        double sum = g.accumulate ? c[at] : g.bias ? bias[j] : 0, size = std::abs(sum);
        for (std::int64_t l = 0; l < g.k; ++l) {
          const double x = a[p * g.stride_a + (g.transpose_a ? l * g.lda + i : i * g.lda + l)];
          const double y = b[p * g.stride_b + (g.transpose_b ? j * g.ldb + l : l * g.ldb + j)];
          sum += g.alpha * x * y;
          size += std::abs(g.alpha * x * y);
        }
        const double bound = 2 * sum_error * size + unit_roundoff(g.result) * std::abs(sum);
        ASSERT_NEAR(result[static_cast<std::size_t>(at)], sum, bound) << "problem " << p << ", at " << i << ", " << j;
      }
}

constexpr std::pair<DType, DType> kTypes[] = {{DType::f64, DType::f64},   {DType::f32, DType::f32},
                                              {DType::bf16, DType::bf16}, {DType::bf16, DType::f32},
                                              {DType::f16, DType::f16},   {DType::f16, DType::f32}};

TEST_F(CudaGemm, EveryLayoutAndType) {
  Context context(0);
  for (const auto& [dtype, result] : kTypes)
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const auto& [m, n, k] : {std::array{5, 7, 9}, std::array{16, 24, 32}, std::array{1, 33, 65}}) {
          const Gemm g{.dtype = dtype, .result = result, .transpose_a = ta, .transpose_b = tb, .m = m, .n = n, .k = k};
          expect_product(context, g);
          expect_product(context, g, {.pad = 3});
        }
}

TEST_F(CudaGemm, BiasAccumulationAndScale) {
  Context context(0);
  for (const auto& [dtype, result] : kTypes) {
    Gemm g{.dtype = dtype, .result = result, .m = 6, .n = 8, .k = 16};
    expect_product(context, g, {.bias = true});
    expect_product(context, g, {.bias = true, .bias_skip = 1});  // too little aligned for an epilogue
    g.alpha = -0.5;
    expect_product(context, g);
    expect_product(context, g, {.bias = true});
    g.accumulate = true;
    expect_product(context, g);
    expect_product(context, g, {.pad = 8});
  }
}

TEST_F(CudaGemm, Batches) {
  Context context(0);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool bias : {false, true}) {
      const Gemm g{.dtype = dtype, .result = dtype, .transpose_b = true, .m = 4, .n = 8, .k = 8, .batch = 5};
      expect_product(context, g, {.bias = bias});
      expect_product(context, g, {.bias = bias, .pad = 2});
      expect_product(context, g, {.bias = bias, .repeat_b = true});
    }
}

TEST_F(CudaGemm, MoreProblemsThanALaunchTakes) {
  Context context(0);
  expect_product(context, {.m = 1, .n = 2, .k = 1, .batch = 65535 + 3});
}

TEST_F(CudaGemm, AddressesOffByAnElement) {
  Context context(0);
  for (const auto& [dtype, result] : kTypes)
    for (const std::int64_t skip : {1, 2, 8}) {
      const Gemm g{.dtype = dtype, .result = result, .transpose_b = true, .m = 16, .n = 16, .k = 16};
      expect_product(context, g);
      expect_product(context, g, {.skip = skip});
    }
}

TEST_F(CudaGemm, SumsOfNothing) {
  Context context(0);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Gemm g{.dtype = dtype, .result = dtype, .m = 3, .n = 5, .k = 0, .batch = 2};
    expect_product(context, g);
    expect_product(context, g, {.bias = true, .pad = 1});
    g.accumulate = true;
    expect_product(context, g);
  }
  expect_product(context, {.m = 0, .n = 5, .k = 3});
  expect_product(context, {.m = 3, .n = 5, .k = 3, .batch = 0});
}

TEST_F(CudaGemm, InfinitiesAndNaNGoThrough) {
  Context context(0);
  const float a[] = {INFINITY, 1, 2, 3}, b[] = {1, NAN, 1, 1};  // [2,2] each
  const Workspace x(context, 16), y(context, 16), z(context, 16);
  context.upload(x.data(), a, 16);
  context.upload(y.data(), b, 16);
  gemm(context, {.m = 2, .n = 2, .k = 2, .lda = 2, .ldb = 2, .ldc = 2}, x.data(), y.data(), z.data());
  float c[4];
  context.download(c, z.data(), 16);
  EXPECT_EQ(c[0], INFINITY);
  EXPECT_TRUE(std::isnan(c[1]));
  EXPECT_EQ(c[2], 5);
  EXPECT_TRUE(std::isnan(c[3]));
}

TEST_F(CudaGemm, EqualCallsGiveEqualBitsRecordedOnesToo) {
  Context context(0);
  constexpr std::int64_t n = 48;
  const Gemm g{.m = n, .n = n, .k = n, .lda = n, .ldb = n, .ldc = n};
  const Values a(context, DType::f32, n * n, 0, 1), b(context, DType::f32, n * n, 0, 2);
  const Values c(context, DType::f32, n * n, 0, 3), d(context, DType::f32, n * n, 0, 3);
  gemm(context, g, a.device(), b.device(), c.device());
  const std::vector<double> eager = c.read();
  const auto graph = context.record([&] { gemm(context, g, a.device(), b.device(), d.device()); });
  graph->launch();
  EXPECT_EQ(d.read(), eager);
  gemm(context, g, a.device(), b.device(), c.device());
  EXPECT_EQ(c.read(), eager);
}

TEST_F(CudaGemm, DimsBeyondTheLibraryAreNamed) {
  Context context(0);
  try {
    gemm(context, {.m = std::int64_t{1} << 31, .n = 1, .k = 1, .lda = 1, .ldb = 1, .ldc = 1}, nullptr, nullptr,
         nullptr);
    FAIL() << "accepted";
  } catch (const Error& e) { EXPECT_NE(e.message().find("2147483648"), std::string::npos) << e.message(); }
}

// Needs no device: the library itself judges every attribute that is set, and stops at the handle that is none.
TEST(GemmPlan, TheLibraryTakesItsDescriptions) {
  for (const auto& [dtype, result] : kTypes)
    for (const std::int64_t batch : {1, 3}) {
      const float bias[4] = {};
      const Gemm g{.dtype = dtype,
                   .result = result,
                   .transpose_b = true,
                   .m = 2,
                   .n = 4,
                   .k = 8,
                   .lda = 8,
                   .ldb = 8,
                   .ldc = 4,
                   .batch = batch,
                   .stride_a = 16,
                   .stride_c = 8,
                   .bias = bias};
      for (const bool tf32 : {false, true}) {
        const GemmPlan plan(GemmProblem::of(g, tf32, nullptr, nullptr, nullptr));
        sherd::testing::expect_error([&] { plan.candidates(nullptr, 1 << 20, 8, bias); },
                                     {"asking cuBLASLt", "NOT_INITIALIZED"});
      }
    }
}

}  // namespace

}  // namespace sherd::cuda
