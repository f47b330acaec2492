// What the emulated GPU makes of wrong kernels and wrong calls.
#include <numeric>

#include <gtest/gtest.h>

#include "tests/cuda/cuda_test.h"
#include "tests/cuda/device_kernels.h"
#include "tests/cuda/device_memory.h"
#include "tests/support/emulated_gpu/control.h"

namespace sherd::cuda {

namespace {

class EmulatedKernels : public testing::Test {
 protected:
  void SetUp() override { emulated::reset(); }
  void TearDown() override { emulated::reset(); }
};

std::vector<int> reversed(std::uint64_t seed, bool barrier) {
  emulated::set_seed(seed);
  const TestStream stream;
  std::vector<int> values(64);
  std::iota(values.begin(), values.end(), 0);
  const DeviceArray<int> in(stream, values), out(values.size());
  reverse(stream, in.data(), out.data(), 1, 64, barrier);
  return out.read(stream);
}

TEST_F(EmulatedKernels, AMissingBarrierShowsUnderEverySeed) {
  std::vector<int> expected(64);
  std::iota(expected.rbegin(), expected.rend(), 0);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(reversed(seed, true), expected);
    EXPECT_NE(reversed(seed, false), expected);
  }
}

TEST_F(EmulatedKernels, CountsLaunchesByName) {
  const TestStream stream;
  const DeviceArray<float> in(stream, std::vector<float>(256)), out(256);
  scale(stream, in.data(), out.data(), 256, 2.0);
  scale(stream, in.data(), out.data(), 0, 2.0);  // nothing to do: no launch
  stream.wait();
  const emulated::Counters counters = emulated::counters();
  EXPECT_EQ(counters.launches.at("scale_kernel<float>"), 1);
  EXPECT_EQ(counters.kernels, 1);
  EXPECT_EQ(counters.host_syncs, 1);
}

}  // namespace

}  // namespace sherd::cuda
