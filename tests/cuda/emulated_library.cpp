// Tensors of these tests live on the emulated GPU: the runtime is told which library to open, and the GPU which test
// runs, because faults that are asked for may name one.
#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/support/emulated_gpu/control.h"

namespace sherd::testing {
namespace {

class EmulatedLibrary : public ::testing::Environment {
 public:
  void SetUp() override {
    ::setenv("SHERD_CUDA_LIB", SHERD_EMULATED_LIBRARY, /*overwrite=*/0);
    ::setenv("SHERD_CACHE", "", /*overwrite=*/0);  // what is found out here is of no use elsewhere
  }
};
const auto* const registered = ::testing::AddGlobalTestEnvironment(new EmulatedLibrary);

class RunningTest : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override {
    cuda::emulated::set_running_test(std::string(test.test_suite_name()) + "." + test.name());
  }
};
const bool listens = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new RunningTest);
  return true;
}();

}  // namespace
}  // namespace sherd::testing
