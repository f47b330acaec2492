// Collectives, atomics, vectors and tensor-core functions of device.h against closed forms.
#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/cuda/cuda_test.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/warp_kernels.h"

namespace sherd::cuda {

namespace {

class CudaWarp : public CudaTest {};

TEST_F(CudaWarp, Collectives) {
  const TestStream stream;
  std::vector<std::int64_t> x(32);
  for (std::size_t i = 0; i < 32; ++i) x[i] = static_cast<std::int64_t>(i * i * 1000003) - (std::int64_t{1} << 40);
  const DeviceArray<std::int64_t> in(stream, x), out(6 * 32);
  warp_collectives(stream, in.data(), out.data());
  const std::vector<std::int64_t> result = out.read(stream);
  std::int64_t odd = 0;
  for (std::size_t i = 0; i < 32; ++i) odd |= std::int64_t{x[i] % 2 != 0} << i;
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(result[i], x[(5 * i + 3) % 32]);
    EXPECT_EQ(result[32 + i], x[i ^ 7]);
    EXPECT_EQ(result[64 + i], x[i + 9 < 32 ? i + 9 : i]);
    EXPECT_EQ(result[96 + i], std::accumulate(x.begin(), x.end(), std::int64_t{0}));
    EXPECT_EQ(result[128 + i], *std::max_element(x.begin(), x.end()));
    EXPECT_EQ(result[160 + i], odd);
  }
}

TEST_F(CudaWarp, Atomics) {
  const TestStream stream;
  constexpr std::size_t n = 5000, bins = 17;
  std::vector<std::int32_t> values(n);
  std::vector<std::uint32_t> expected(bins);
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = static_cast<std::int32_t>(i * i % bins);
    ++expected[static_cast<std::size_t>(values[i])];
  }
  const DeviceArray<std::int32_t> in(stream, values), extremes(stream, std::vector<std::int32_t>{-5, 100});
  const DeviceArray<std::uint32_t> counts(stream, std::vector<std::uint32_t>(bins));
  histogram(stream, in.data(), n, counts.data(), extremes.data());
  EXPECT_EQ(counts.read(stream), expected);
  EXPECT_EQ(extremes.read(stream), (std::vector<std::int32_t>{16, 0}));
}

template <class T>
void check_product() {
  const TestStream stream;
  std::vector<T> a(16 * 16), b(16 * 8);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = T(static_cast<float>(i * 7 % 31) - 15.0f);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = T(static_cast<float>(i * 5 % 23) - 11.0f);
  const DeviceArray<T> device_a(stream, a), device_b(stream, b);
  const DeviceArray<float> device_c(16 * 8);
  multiply(stream, dtype_of<T>, device_a.data(), device_b.data(), device_c.data());
  const std::vector<float> c = device_c.read(stream);
  for (std::size_t row = 0; row < 16; ++row)
    for (std::size_t column = 0; column < 8; ++column) {
      float sum = 0;  // whole numbers below 2^24: exact in any order
      for (std::size_t k = 0; k < 16; ++k)
        sum += static_cast<float>(a[row * 16 + k]) * static_cast<float>(b[k * 8 + column]);
      ASSERT_EQ(c[row * 8 + column], sum) << row << ", " << column;
    }
}

TEST_F(CudaWarp, MatrixFragmentsOfBf16) { check_product<bf16>(); }
TEST_F(CudaWarp, MatrixFragmentsOfF16) { check_product<f16>(); }

TEST_F(CudaWarp, VectorsOfEverySize) {
  const TestStream stream;
  std::vector<std::uint8_t> values(4096);
  std::iota(values.begin(), values.end(), std::uint8_t{0});
  const DeviceArray<std::uint8_t> in(stream, values);
  for (const int bytes : {1, 2, 4, 8})
    for (const int vector : {1, 2, 4, 8})
      for (const bool streamed : {false, true}) {
        const DeviceArray<std::uint8_t> out(values.size());
        copy_vectors(stream, bytes, vector, streamed, in.data(), out.data(),
                     static_cast<std::int64_t>(values.size()) / bytes);
        EXPECT_EQ(out.read(stream), values) << vector << " elements of " << bytes << " bytes";
      }
}

}  // namespace

}  // namespace sherd::cuda
