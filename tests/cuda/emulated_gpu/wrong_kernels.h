#pragma once
// One kernel with one mistake for each rule that the emulated GPU holds.
#include <cstdint>
#include <functional>
#include <vector>

#include <cuda_runtime_api.h>

namespace sherd::cuda {

struct WrongKernel {
  const char* name;                                                // of the test
  const char* report;                                              // a part of what the emulated GPU says
  std::function<void(cudaStream_t stream, float* memory)> launch;  // memory: 64 floats on the device
};
const std::vector<WrongKernel>& wrong_kernels();

/// out[i] = in[i] for one block of `threads`, through `bytes` bytes of shared memory.
void copy_through_shared(cudaStream_t stream, const float* in, float* out, unsigned threads, std::size_t bytes);
/// Each of the threads adds one to the counter.
void count_threads(cudaStream_t stream, std::uint32_t* counter, unsigned threads);
/// p[i] = value for i < n.
void fill(cudaStream_t stream, float* p, std::int64_t n, float value);
/// p[i] = 2 p[i] + term for i < n: the order of two of these shows.
void double_and_add(cudaStream_t stream, float* p, std::int64_t n, float term);

}  // namespace sherd::cuda
