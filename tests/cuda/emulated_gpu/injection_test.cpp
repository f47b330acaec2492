// Faults that are asked for: a launch that loses the device, and one that never ends.
#include <csignal>
#include <cstdlib>

#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/cuda/device_kernels.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulated_gpu/fixture.h"
#include "tests/cuda/emulated_gpu/wrong_kernels.h"
#include "tests/support/expect_error.h"

namespace sherd::cuda {

namespace {

using sherd::testing::expect_error;

class EmulatedInjection : public EmulatedTest {
 protected:
  static void illegal_address(const std::string& launch, bool blocking = false) {
    emulated::Configuration configuration;
    configuration.illegal_address = launch;
    configuration.launch_blocking = blocking;
    emulated::reset(configuration);
  }
};
using EmulatedInjectionDeathTest = EmulatedInjection;

TEST_F(EmulatedInjection, TheKthLaunchLosesTheDevice) {
  illegal_address("3");
  const TestStream stream;
  const DeviceArray<float> memory(64);
  for (int launch = 1; launch <= 2; ++launch) {
    fill(stream, memory.data(), 64, 1);
    stream.wait();
  }
  fill(stream, memory.data(), 64, 2);
  expect_error([&] { stream.wait(); }, {"cudaErrorIllegalAddress", "kernel fill_kernel, launch 3"});
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 16), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress) << "it stays";
}

TEST_F(EmulatedInjection, ALaunchMayBeNamedByItsKernelOrByTheTestThatRuns) {
  for (const char* named : {"scale_kernel", "Suite", "Suite.Name"}) {
    illegal_address(named);
    emulated::set_running_test("Other.Name");
    const TestStream stream;
    const DeviceArray<float> in(stream, std::vector<float>(64, 3)), out(64);
    fill(stream, in.data(), 64, 1);
    stream.wait();
    emulated::set_running_test("Suite.Name");
    scale(stream, in.data(), out.data(), 64, 2.0);
    expect_error([&] { stream.wait(); }, {"kernel scale_kernel<float>, launch 2"});
  }
  emulated::set_running_test("");
}

TEST_F(EmulatedInjection, ALaunchThatBlocksHasItsOwnError) {
  illegal_address("2", /*blocking=*/true);
  const TestStream stream;
  const DeviceArray<float> memory(64);
  fill(stream, memory.data(), 64, 1);
  EXPECT_EQ(emulated::pending(), 0u);
  expect_error([&] { fill(stream, memory.data(), 64, 1); }, {"fill_kernel", "launch 2"});
}

TEST_F(EmulatedInjectionDeathTest, AHangLastsUntilASignal) {
  emulated::Configuration configuration;
  configuration.hang = "fill_kernel";
  emulated::reset(configuration);
  const auto hang = [] {
    const TestStream stream;
    const DeviceArray<float> memory(64);
    fill(stream, memory.data(), 64, 1);
    ::alarm(1);
    stream.wait();
  };
  EXPECT_EXIT(hang(), ::testing::KilledBySignal(SIGALRM), "kernel fill_kernel, launch 1: never ends");
}

TEST_F(EmulatedInjection, EnvironmentVariablesAskForIt) {
  ::setenv("SHERD_EMULATED_GPU_ILLEGAL_ADDRESS", "7", 1);
  ::setenv("SHERD_EMULATED_GPU_HANG", "CudaFaults", 1);
  ::setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  const emulated::Configuration configuration = emulated::default_configuration();
  for (const char* name : {"SHERD_EMULATED_GPU_ILLEGAL_ADDRESS", "SHERD_EMULATED_GPU_HANG", "CUDA_LAUNCH_BLOCKING"})
    ::unsetenv(name);
  EXPECT_EQ(configuration.illegal_address, "7");
  EXPECT_EQ(configuration.hang, "CudaFaults");
  EXPECT_TRUE(configuration.launch_blocking);
}

}  // namespace

}  // namespace sherd::cuda
