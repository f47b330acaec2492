#pragma once
// Training on the emulated GPU: the trainer of tests/tools with its tiny runs, and what one needs to compare devices.
#include <cmath>
#include <string>
#include <vector>

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

class TrainingOnCuda : public cuda::CudaTest {
 protected:
  static TrainConfig on_cuda(TrainConfig config) {
    config.plan.device = Device::cuda(0);
    return config;
  }
  static DeviceContext& device() { return RankContext::current().device(Device::cuda(0)); }

  TempDir dir_;
  std::string data_ = dir_.write("text.txt", tiny_text());
  TrainConfig gpt_ = tiny_config(data_), llama_ = tiny_llama(data_);
};

}  // namespace sherd::testing
