// Instruction-set levels: what is offered and chosen. That each level's rows are right is the op sweep's business,
// which ctest runs once per level; that no level leaks into another is sealed_levels.py's.
#include "runtime/os/instruction_level.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "runtime/cpu/kernels.h"
#include "runtime/os/settings.h"

namespace sherd::testing {
namespace {

TEST(Level, IsTheHighestUnlessOneIsAskedFor) {
  const auto usable = usable_levels();
  ASSERT_FALSE(usable.empty());
  const std::string asked = requested_cpu_level();
  EXPECT_EQ(instruction_level().name, asked.empty() ? usable.back() : asked);
}

TEST(Level, RowsComeFromItsTable) {
  OpTable table;
  table.add({&op::add});
  EXPECT_EQ(table.kernels(op::add).kernel[0], nullptr);
  EXPECT_THROW(cpu::kernels().register_rows(table), Error);  // the other rows are missing
  EXPECT_EQ(table.kernels(op::add).kernel[0], kernels_of(op::add).kernel[0]);
}

}  // namespace
}  // namespace sherd::testing
