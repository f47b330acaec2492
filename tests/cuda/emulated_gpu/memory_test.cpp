// Device and pinned memory of the emulated GPU.
#include <atomic>
#include <cmath>
#include <memory>
#include <thread>

#include <cuda.h>

#include <gtest/gtest.h>

#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulated_gpu/fixture.h"
#include "tests/cuda/emulated_gpu/wrong_kernels.h"
#include "tests/support/expect_error.h"

namespace sherd::cuda {

namespace {

using sherd::testing::expect_error;

class EmulatedMemory : public EmulatedTest {};
using EmulatedMemoryDeathTest = EmulatedMemory;

TEST_F(EmulatedMemoryDeathTest, HostCodeCannotTouchDeviceMemory) {
  const DeviceArray<float> memory(16);
  EXPECT_DEATH(memory.data()[3] = 1, "host code touches device memory");
}

TEST_F(EmulatedMemory, FreshAndFreedMemoryIsNoNumber) {
  const TestStream stream;
  void* p = nullptr;
  check(cudaMalloc(&p, 64), "cudaMalloc");
  const emulated::HostAccess access;
  EXPECT_TRUE(std::isnan(static_cast<float*>(p)[15]));
  static_cast<float*>(p)[15] = 1;
  check(cudaFree(p), "cudaFree");
  EXPECT_TRUE(std::isnan(static_cast<float*>(p)[15]));
}

TEST_F(EmulatedMemory, CapacityIsALimit) {
  emulated::set_capacity(1 << 20);
  const DeviceArray<char> half(600'000);
  expect_error([] { DeviceArray<char>(500'000); }, {"cudaMalloc", "cudaErrorMemoryAllocation", "out of memory"});
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // the thrown error is not met again
  EXPECT_EQ(emulated::used_bytes(), 600'000u);
  std::size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  EXPECT_EQ(free_bytes, (std::size_t{1} << 20) - 600'000);
  EXPECT_EQ(total_bytes, std::size_t{1} << 20);
}

TEST_F(EmulatedMemory, FreedMemoryIsUsedAgain) {
  emulated::set_capacity(std::size_t{3} << 20);
  for (int round = 0; round < 200; ++round) {
    const DeviceArray<char> a(1 << 20), b(700'000);
    const DeviceArray<char> c(1000);
  }
  EXPECT_EQ(emulated::live_allocations(), 0u);
  EXPECT_EQ(emulated::used_bytes(), 0u);
}

TEST_F(EmulatedMemory, CopiesAreCheckedAgainstTheirAllocation) {
  const TestStream stream;
  const DeviceArray<float> memory(16), other(16);
  PinnedFloats host(32);
  EXPECT_EQ(cudaMemcpyAsync(memory.data(), host.data(), 68, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), memory.data() + 1, 64, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(memory.data(), host.data(), 64, cudaMemcpyDeviceToHost, stream),
            cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemcpyAsync(memory.data(), other.data(), 64, cudaMemcpyDefault, stream), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(memory.data(), 0, 65, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(memory.data() + 1), cudaErrorInvalidValue);
}

TEST_F(EmulatedMemory, PageableMemoryMakesACopyWait) {
  const TestStream stream;
  const DeviceArray<float> memory(stream, std::vector<float>(16, 2));
  EXPECT_EQ(emulated::counters().host_syncs, 0);
  EXPECT_EQ(memory.read(stream), std::vector<float>(16, 2));
  EXPECT_EQ(emulated::counters().host_syncs, 1);
}

TEST_F(EmulatedMemory, PinnedStagingThatIsWrittenTooSoonGivesWrongValues) {
  bool wrong = false;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    emulated::set_seed(seed);
    const TestStream stream;
    const DeviceArray<float> a(1), b(1);
    PinnedFloats staging(1);
    staging[0] = 1;
    check(cudaMemcpyAsync(a.data(), staging.data(), 4, cudaMemcpyHostToDevice, stream), "copy");
    staging[0] = 2;  // the copy may not have run
    check(cudaMemcpyAsync(b.data(), staging.data(), 4, cudaMemcpyHostToDevice, stream), "copy");
    wrong |= a.read(stream)[0] != 1;
    EXPECT_EQ(b.read(stream)[0], 2);
  }
  EXPECT_TRUE(wrong);
}

void wait_for_word(cudaStream_t stream, const std::atomic<std::uint32_t>* word, std::uint32_t value) {
  void* function = nullptr;
  check(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, 12000, cudaEnableDefault, nullptr), "entry");
  using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
  ASSERT_EQ(reinterpret_cast<WaitValue>(function)(reinterpret_cast<CUstream>(stream),
                                                  reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WAIT_VALUE_GEQ),
            CUDA_SUCCESS);
}

// As on a device, where a thread that frees what its own host work needs to go on would hang.
TEST_F(EmulatedMemory, FreeingWaitsForStreamsThatWaitForTheHost) {
  emulated::Configuration configuration;
  for (const bool comes : {true, false}) {
    configuration.patience = std::chrono::milliseconds(comes ? 20'000 : 50);
    emulated::reset(configuration);
    const TestStream stream;
    PinnedFloats memory(1);
    auto* const word = std::construct_at(reinterpret_cast<std::atomic<std::uint32_t>*>(memory.data()), 3u);
    void *of_device = nullptr, *of_other = nullptr;
    check(cudaMalloc(&of_device, 16), "cudaMalloc");
    check(cudaSetDevice(1), "cudaSetDevice");
    check(cudaMalloc(&of_other, 16), "cudaMalloc");
    check(cudaSetDevice(0), "cudaSetDevice");
    wait_for_word(stream, word, 5);
    EXPECT_EQ(cudaFree(of_other), cudaSuccess) << "nothing runs on that device";
    std::thread host([&] {
      if (comes) *word = 5;
    });
    EXPECT_EQ(cudaFree(of_device), comes ? cudaSuccess : cudaErrorLaunchTimeout);
    host.join();
    if (comes) continue;
    for (const char* part : {"cudaFree waits for device 0: stream 1 waits for the word at ", "to become 5; it is 3"})
      EXPECT_NE(emulated::report().find(part), std::string::npos) << emulated::report();
  }
}

TEST_F(EmulatedMemory, PinnedMemoryIsReadByKernels) {
  const TestStream stream;
  PinnedFloats host(64);
  fill(stream, host.data(), 64, 5);
  stream.wait();
  EXPECT_EQ(host[63], 5);
}

}  // namespace

}  // namespace sherd::cuda
