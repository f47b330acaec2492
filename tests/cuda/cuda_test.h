#pragma once
// The fixture of tests that run kernels: skipped where there is no device. Each test is a rank of its own, so that none
// meets the context of one before, whose device may have been reset.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/exec/context.h"

namespace sherd::cuda {

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    const bool none = status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver;
    if (none || (status == cudaSuccess && devices == 0))
      GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(status);
    ASSERT_EQ(status, cudaSuccess) << "the device is lost: " << cudaGetErrorString(status);
  }

 private:
  RankScope rank_;
};

/// The device of a rank that is a thread: its own, where there are as many.
inline Device device_of_rank(int rank) {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0
             ? Device::cuda(static_cast<std::uint8_t>(rank % devices))
             : Device::cuda(0);
}

}  // namespace sherd::cuda

namespace sherd::testing {

inline const Device kCuda = Device::cuda(0);

}  // namespace sherd::testing
