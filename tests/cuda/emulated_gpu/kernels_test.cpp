// What the emulated GPU makes of wrong kernels and wrong launches.
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/cuda/device_kernels.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulated_gpu/fixture.h"
#include "tests/cuda/emulated_gpu/wrong_kernels.h"
#include "tests/support/expect_error.h"

namespace sherd::cuda {

namespace {

using sherd::testing::expect_error;

class EmulatedKernels : public EmulatedTest {};

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

TEST_F(EmulatedKernels, EveryMistakeIsReportedOnceWithTheKernelsName) {
  for (const WrongKernel& wrong : wrong_kernels()) {
    SCOPED_TRACE(wrong.name);
    emulated::reset();
    const TestStream stream;
    const DeviceArray<float> memory(stream, std::vector<float>(64));
    const auto run = [&] {
      wrong.launch(stream, memory.data());
      stream.wait();
    };
    expect_error(run, {wrong.report, "kernel "});
    EXPECT_NE(emulated::report().find(wrong.report), std::string::npos) << emulated::report();
    // The device is lost: whatever is called next says so.
    void* p = nullptr;
    EXPECT_NE(cudaMalloc(&p, 16), cudaSuccess);
    EXPECT_NE(cudaStreamSynchronize(stream), cudaSuccess);
  }
}

TEST_F(EmulatedKernels, AFreshDeviceRunsAgain) {
  const TestStream stream;
  const DeviceArray<float> in(stream, std::vector<float>(256, 3)), out(256);
  scale(stream, in.data(), out.data(), 256, 2.0);
  EXPECT_EQ(out.read(stream), std::vector<float>(256, 6));
}

TEST_F(EmulatedKernels, AFreedArgumentIsReported) {
  const TestStream stream;
  float* gone = nullptr;
  {
    const DeviceArray<float> memory(64);
    gone = memory.data();
  }
  expect_error(
      [&] {
        fill(stream, gone, 64, 1);
        stream.wait();
      },
      {"fill_kernel", "points to freed memory"});
}

TEST_F(EmulatedKernels, ALaunchThatNoDeviceTakesNamesTheKernel) {
  const TestStream stream;
  const DeviceArray<float> memory(stream, std::vector<float>(64));
  expect_error([&] { copy_through_shared(stream, memory.data(), memory.data(), 1025, 0); },
               {"copy_through_shared_kernel", "1025 threads", "cudaErrorInvalidConfiguration"});
  expect_error([&] { copy_through_shared(stream, memory.data(), memory.data(), 32, 232 * 1024); },
               {"copy_through_shared_kernel", "237568 bytes of shared memory"});
  expect_error([&] { copy_through_shared(stream, memory.data(), memory.data(), 544, 0); },
               {"copy_through_shared_kernel", "544 threads", "cudaErrorLaunchOutOfResources"});
  stream.wait();  // a refused launch loses nothing
}

TEST_F(EmulatedKernels, ALargeBlockOfSharedMemoryIsOptedInTo) {
  const TestStream stream;
  const DeviceArray<float> in(stream, std::vector<float>(64, 7)), out(64);
  copy_through_shared(stream, in.data(), out.data(), 64, 200 * 1024);
  EXPECT_EQ(out.read(stream), std::vector<float>(64, 7));
}

// A device waits a microsecond for each, one after another; they are counted, and events see their time.
TEST_F(EmulatedKernels, AtomicsOnPinnedMemoryAreDear) {
  const TestStream stream;
  PinnedFloats pinned(1);
  auto* const there = reinterpret_cast<std::uint32_t*>(pinned.data());
  *there = 0;
  const DeviceArray<std::uint32_t> here(stream, {0});
  float milliseconds[2] = {};
  for (const bool over_the_bus : {false, true}) {
    emulated::reset_counters();
    cudaEvent_t start = nullptr, end = nullptr;
    check(cudaEventCreate(&start), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
    stream.wait();
    check(cudaEventRecord(start, stream), "cudaEventRecord");
    for (int launch = 0; launch < 200; ++launch) count_threads(stream, over_the_bus ? there : here.data(), 500);
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    stream.wait();
    check(cudaEventElapsedTime(&milliseconds[over_the_bus], start, end), "cudaEventElapsedTime");
    EXPECT_EQ(emulated::counters().pinned_atomics, over_the_bus ? 100'000 : 0);
  }
  EXPECT_EQ(*there, 100'000u);
  EXPECT_EQ(here.read(stream), std::vector<std::uint32_t>{100'000});
  EXPECT_GT(milliseconds[true], 100);
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
