// Tests that ask for the same bits twice need sums in a fixed order, which attention has by choice (attention.h).
#include <cstdlib>

#include <gtest/gtest.h>

namespace sherd::testing {
namespace {

class FixedOrders : public ::testing::Environment {
 public:
  void SetUp() override { ::setenv("SHERD_ATTENTION", "deterministic", /*overwrite=*/0); }
};
const auto* const registered = ::testing::AddGlobalTestEnvironment(new FixedOrders);

}  // namespace
}  // namespace sherd::testing
