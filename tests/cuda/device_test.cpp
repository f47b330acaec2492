// device.h against closed forms.
#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/cuda/cuda_test.h"
#include "tests/cuda/device_kernels.h"
#include "tests/cuda/device_memory.h"

namespace sherd::cuda {

namespace {

class CudaDevice : public CudaTest {};

TEST_F(CudaDevice, VectorsOverAGridLoop) {
  const TestStream stream;
  std::vector<float> values(10000);
  std::iota(values.begin(), values.end(), 0.0f);
  const DeviceArray<float> in(stream, values), out(values.size());
  scale(stream, in.data(), out.data(), 10000, 0.5);
  const std::vector<float> result = out.read(stream);
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(result[i], 0.5f * static_cast<float>(i)) << i;
}

TEST_F(CudaDevice, BlockSumAndMaximum) {
  const TestStream stream;
  constexpr unsigned blocks = 5, threads = 416;  // 13 warps
  std::vector<float> values(blocks * threads);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 37) % 1009);
  const DeviceArray<float> in(stream, values), out(2 * blocks);
  block_reduce(stream, in.data(), out.data(), blocks, threads);
  const std::vector<float> result = out.read(stream);
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto* first = values.data() + b * threads;
    EXPECT_EQ(result[b],
              std::accumulate(first, first + threads, 0.0f));  // whole numbers below 2^24: exact in any order
    EXPECT_EQ(result[blocks + b], *std::max_element(first, first + threads));
  }
}

TEST_F(CudaDevice, SharedMemoryAndABarrier) {
  const TestStream stream;
  constexpr unsigned blocks = 3, threads = 200;
  std::vector<int> values(blocks * threads);
  std::iota(values.begin(), values.end(), 0);
  const DeviceArray<int> in(stream, values), out(values.size());
  reverse(stream, in.data(), out.data(), blocks, threads, true);
  const std::vector<int> result = out.read(stream);
  for (std::size_t i = 0; i < result.size(); ++i)
    ASSERT_EQ(result[i], static_cast<int>(i / threads * threads + threads - 1 - i % threads));
}

}  // namespace

}  // namespace sherd::cuda
