#pragma once
// The fixture of tests of the emulated GPU: a fresh device before and after each, and pinned memory.
#include <cstddef>

#include <gtest/gtest.h>

#include "runtime/cuda/device/check.h"
#include "tests/support/emulated_gpu/control.h"

namespace sherd::cuda {

class EmulatedTest : public testing::Test {
 protected:
  EmulatedTest() { emulated::reset(); }
  ~EmulatedTest() override { emulated::reset(); }
};

class PinnedFloats {
 public:
  explicit PinnedFloats(std::size_t n) {
    void* p = nullptr;
    check(cudaMallocHost(&p, n * sizeof(float)), "cudaMallocHost");
    data_ = static_cast<float*>(p);
  }
  ~PinnedFloats() { static_cast<void>(cudaFreeHost(data_)); }
  PinnedFloats(const PinnedFloats&) = delete;
  PinnedFloats& operator=(const PinnedFloats&) = delete;
  float* data() { return data_; }
  float& operator[](std::size_t i) { return data_[i]; }

 private:
  float* data_ = nullptr;
};

}  // namespace sherd::cuda
