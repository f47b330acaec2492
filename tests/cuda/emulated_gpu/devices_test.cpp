// Several emulated devices: whose memory, streams and events are whose, and where contexts are made.
#include <gtest/gtest.h>

#include <thread>

#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulated_gpu/fixture.h"
#include "tests/cuda/emulated_gpu/wrong_kernels.h"
#include "tests/support/expect_error.h"

namespace sherd::cuda {

namespace {

using sherd::testing::expect_error;

class EmulatedDevices : public EmulatedTest {};

TEST_F(EmulatedDevices, AreAskedFor) {
  int count = 0, now = -1;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  EXPECT_EQ(count, 4);
  EXPECT_EQ(cudaSetDevice(4), cudaErrorInvalidDevice);
  emulated::Configuration configuration;
  configuration.devices = 1;
  emulated::reset(configuration);
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  EXPECT_EQ(count, 1);
  EXPECT_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
  check(cudaGetDevice(&now), "cudaGetDevice");
  EXPECT_EQ(now, 0);
}

TEST_F(EmulatedDevices, EachThreadHasACurrentOne) {
  check(cudaSetDevice(2), "cudaSetDevice");
  int there = -1, here = -1;
  std::thread([&] { check(cudaGetDevice(&there), "cudaGetDevice"); }).join();
  check(cudaGetDevice(&here), "cudaGetDevice");
  EXPECT_EQ(there, 0);
  EXPECT_EQ(here, 2);
}

TEST_F(EmulatedDevices, HaveMemoryOfTheirOwn) {
  emulated::set_capacity(1 << 20);
  const DeviceArray<char> first(600'000);
  check(cudaSetDevice(1), "cudaSetDevice");
  const DeviceArray<char> second(600'000);
  std::size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  EXPECT_EQ(free_bytes, (std::size_t{1} << 20) - 600'000);
  EXPECT_EQ(emulated::used_bytes(), 1'200'000u);
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, first.data()), "cudaPointerGetAttributes");
  EXPECT_EQ(attributes.device, 0);
}

TEST_F(EmulatedDevices, LaunchesGoToTheCurrentOneOnly) {
  const TestStream stream;
  const DeviceArray<float> memory(4);
  check(cudaSetDevice(1), "cudaSetDevice");
  expect_error([&] { fill(stream, memory.data(), 4, 1); }, {"fill_kernel", "cudaErrorInvalidResourceHandle"});
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
  const TestStream other;
  fill(other, memory.data(), 4, 1);
  expect_error([&] { other.wait(); }, {"fill_kernel", "of device 1", "memory of device 0"});
}

TEST_F(EmulatedDevices, StreamsWaitForEventsOfOthers) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    emulated::set_seed(seed);
    check(cudaSetDevice(0), "cudaSetDevice");
    const TestStream stream;
    const DeviceArray<float> memory(1);
    PinnedFloats host(1);
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    fill(stream, memory.data(), 1, 3);
    check(cudaMemcpyAsync(host.data(), memory.data(), 4, cudaMemcpyDeviceToHost, stream), "copy");
    check(cudaEventRecord(event, stream), "cudaEventRecord");
    check(cudaSetDevice(1), "cudaSetDevice");
    const TestStream other;
    const DeviceArray<float> there(1);
    check(cudaStreamWaitEvent(other, event, 0), "cudaStreamWaitEvent");
    check(cudaMemcpyAsync(there.data(), host.data(), 4, cudaMemcpyHostToDevice, other), "copy");
    EXPECT_EQ(there.read(other)[0], 3);
    check(cudaSetDevice(0), "cudaSetDevice");
  }
}

TEST_F(EmulatedDevices, ContextsAreMadeWhereAThreadCalls) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  EXPECT_TRUE(emulated::contexts().empty());
  check(cudaSetDevice(1), "cudaSetDevice");
  const TestStream stream;
  EXPECT_EQ(emulated::contexts(), std::set<int>{1});
  std::thread([&] { (void)cudaStreamQuery(stream); }).join();
  EXPECT_EQ(emulated::contexts(), (std::set<int>{0, 1})) << "a thread that has chosen none";
}

}  // namespace

}  // namespace sherd::cuda
