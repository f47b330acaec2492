#pragma once
// The fixture of tests that run kernels: skipped where there is no device, seeded anew on the emulated one.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace sherd::cuda {

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(status);
  }
};

}  // namespace sherd::cuda
