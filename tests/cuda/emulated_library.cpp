// Tensors of these tests live on the emulated GPU: the runtime is told which library to open.
#include <cstdlib>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sherd::testing
