#pragma once
// RAII for the tests: a stream, and arrays in device memory that are copied as vectors.
#include <cstddef>
#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/cuda/device/check.h"

namespace sherd::cuda {

class TestStream {
 public:
  TestStream() {
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0), "cudaStreamCreateWithPriority");
  }
  ~TestStream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t n) : n_(n) {
    void* p = nullptr;
    check(cudaMalloc(&p, n * sizeof(T)), "cudaMalloc");
    data_ = static_cast<T*>(p);
  }
  DeviceArray(cudaStream_t stream, const std::vector<T>& values) : DeviceArray(values.size()) {
    check(cudaMemcpyAsync(data_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  }
  ~DeviceArray() { static_cast<void>(cudaFree(data_)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* data() const { return data_; }
  /// Waits for the stream.
  std::vector<T> read(cudaStream_t stream) const {
    std::vector<T> values(n_);
    check(cudaMemcpyAsync(values.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t n_ = 0;
};

}  // namespace sherd::cuda
