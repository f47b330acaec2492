// Names of what a step uses: known while it lives, on its rank, once.
#include "runtime/op/core/step_names.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

#include "runtime/exec/context.h"

namespace sherd::testing {
namespace {

TEST(StepNames, StoragesAreKnownWhileTheyAreNamed) {
  const Ref<Storage> a = Storage::allocate(8, MemoryCategory::unsharded);
  const Ref<Storage> b = Storage::allocate(8, MemoryCategory::unsharded);
  auto first = name_storage("blocks.0 full", a);
  const auto second = name_storage("blocks.0 full", b);
  EXPECT_EQ(first->name, "blocks.0 full");
  EXPECT_EQ(second->name, "blocks.0 full~2");
  EXPECT_EQ(name_of(*b), "blocks.0 full~2");
  EXPECT_EQ(find_storage("blocks.0 full").get(), a.get());
  first.reset();
  EXPECT_EQ(find_storage("blocks.0 full").get(), nullptr);
  EXPECT_EQ(name_of(*a), "");
  EXPECT_EQ(find_storage("blocks.0 full~2").get(), b.get());
}

TEST(StepNames, MessagesOfLowerLayersSayThem) {
  const RankScope rank;
  const Ref<Storage> bytes = Storage::allocate(4000, MemoryCategory::unsharded);
  const std::string unnamed = fmt::format("storage {} (4 KB of unsharded)", bytes->id());
  EXPECT_EQ(describe(*bytes), unnamed);
  auto named = name_storage("blocks.3 full", bytes);
  EXPECT_EQ(describe(*bytes), fmt::format("storage {} (blocks.3 full, 4 KB of unsharded)", bytes->id()));
  named.reset();
  EXPECT_EQ(describe(*bytes), unnamed);
}

TEST(StepNames, SettingsAreKnownByNameWhateverTheirText) {
  auto setting = std::make_shared<StepSetting>();
  setting->text = "divides by 2";
  name_setting(setting, "head");
  setting->text = "divides by 4";
  EXPECT_EQ(setting->name, "head");
  EXPECT_EQ(find_setting("head"), setting);
  const auto other = std::make_shared<StepSetting>();
  name_setting(other, "head");
  EXPECT_EQ(other->name, "head~2");
  setting.reset();
  EXPECT_EQ(find_setting("head"), nullptr);
}

TEST(StepNames, ARankDoesNotKnowWhatAnotherHasNamed) {
  const auto named = name_storage("tied", Storage::allocate(8, MemoryCategory::unsharded));
  std::thread([] {
    const RankScope rank;
    EXPECT_EQ(find_storage("tied").get(), nullptr);
  }).join();
}

}  // namespace
}  // namespace sherd::testing
