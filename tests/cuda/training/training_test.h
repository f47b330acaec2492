#pragma once
// Training on the emulated GPU: the trainer of tests/tools with its tiny runs, and what one needs to compare devices.
#include <cmath>
#include <string>
#include <vector>

#include "runtime/exec/device_library.h"
#include "runtime/op/op.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/emulated_gpu/control.h"
#include "tests/tools/tiny_run.h"

namespace sherd::testing {

inline void expect_close(const std::vector<double>& actual, const std::vector<double>& expected, double relative,
                         const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], relative * std::abs(expected[i])) << what << ", step " << i + 1;
}

/// Rows that have a kernel of the CPU and none of the GPU, collectives aside; "" if there is none.
inline std::string rows_without_cuda_kernel() {
  std::string names;
  if (!cuda_library().backend) return names;
  for (const Op& op : op_table().rows())
    if (op.kernel[0] && !op.kernel[1] && !op.traits.collective)
      names += (names.empty() ? "" : ", ") + std::string(op.name);
  return names;
}

class TrainingOnCuda : public cuda::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    if (const std::string rows = rows_without_cuda_kernel(); !rows.empty())
      GTEST_SKIP() << "rows without a CUDA kernel: " << rows;
  }
  static TrainConfig on_cuda(TrainConfig config) {
    config.device = "cuda";
    return config;
  }
  static DeviceContext& device() { return RankContext::current().device(Device::cuda(0)); }

  TempDir dir_;
  std::string data_ = dir_.write("text.txt", tiny_text());
  TrainConfig gpt_ = tiny_config(data_), llama_ = tiny_llama(data_);
};

}  // namespace sherd::testing
