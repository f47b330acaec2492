#include "runtime/autograd/slot.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

TEST(Slot, KeepsItsNameLeafAndPlaceInTheContext) {
  const std::size_t before = living_slots().size();
  {
    Slot slot("weight", true);
    EXPECT_EQ(living_slots().size(), before + 1);
    EXPECT_EQ(living_slots().back(), &slot);
    EXPECT_FALSE(slot.has_value());
    expect_error([&] { slot.value(); }, {"\"weight\" has no value yet"});
    const Leaf* leaf = slot.leaf();
    slot.set(ones({2}));
    slot.set(ones({3}));
    EXPECT_EQ(slot.leaf(), leaf) << "one leaf for life";
    EXPECT_EQ(slot.value().grad_node(), leaf);
  }
  EXPECT_EQ(living_slots().size(), before);
}

TEST(Slot, AHookThatAHookAddsRunsFromTheNextGradientOn) {
  Slot slot("weight", true);
  slot.set(ones({2}));
  int added = 0;
  std::string text = "a hook's own data stay where they are";
  slot.on_grad_accumulated([&added, text, is_first = true](Slot& s) mutable {
    if (std::exchange(is_first, false))
      for (int i = 0; i < 20; ++i) s.on_grad_accumulated([&added](Slot&) { ++added; });
    EXPECT_EQ(text, "a hook's own data stay where they are");
  });
  backward(sum(slot.value()));
  EXPECT_EQ(added, 0);
  backward(sum(slot.value()));
  EXPECT_EQ(added, 20);
}

TEST(Slot, IsNotAmongTheLivingWhereverItEnds) {
  const std::vector<Slot*> before = living_slots();
  auto slot = std::make_unique<Slot>("weight");
  std::thread([&] {
    const RankScope scope;
    EXPECT_TRUE(living_slots().empty());
    slot.reset();
  }).join();
  EXPECT_EQ(living_slots(), before);
  {
    const RankScope scope;
    slot = std::make_unique<Slot>("weight");
    EXPECT_EQ(living_slots().size(), 1u);
  }
  slot.reset();  // after its rank's scope
  EXPECT_EQ(living_slots(), before);
}

TEST(Slot, LivingOnesAreInTheOrderInWhichTheyWereMade) {
  const std::vector<Slot*> before = living_slots();
  std::vector<std::unique_ptr<Slot>> made;
  std::vector<Slot*> expected = before;
  for (int i = 0; i < 100; ++i) made.push_back(std::make_unique<Slot>(std::to_string(i)));
  for (int i = 0; i < 100; ++i)
    if (i % 7 == 3) expected.push_back(made[static_cast<std::size_t>(i)].get());
    else made[static_cast<std::size_t>(i)].reset();
  Slot last("last");
  expected.push_back(&last);
  EXPECT_EQ(living_slots(), expected);
  made.clear();
  expected = before;
  expected.push_back(&last);
  EXPECT_EQ(living_slots(), expected);
}

TEST(Slot, SetSharesBytesWithoutTheHistoryOfWhatIsPutIn) {
  Slot source("source", true), target("target", true);
  source.set(Tensor::from<float>({1, 2}, {2}));
  const Tensor y = mul(source.value(), 3);
  target.set(y);
  EXPECT_EQ(target.value().raw(), y.raw());
  backward(sum(target.value()));
  EXPECT_FALSE(source.grad().defined());
  EXPECT_EQ(target.grad().to_vector<double>(), (std::vector<double>{1, 1}));
}

TEST(Slot, AssignWritesInPlaceConvertsAndBumpsTheVersion) {
  Slot slot("x", true);
  slot.set(Tensor::from<float>({1, 2}, {2}));
  const void* raw = slot.value().raw();
  slot.assign(Tensor::from<double>({3, 4}, {2}));
  EXPECT_EQ(slot.value().raw(), raw);
  EXPECT_EQ(slot.value().to_vector<double>(), (std::vector<double>{3, 4}));
  EXPECT_EQ(slot.value().storage()->version(), 1u);
  expect_error([&] { slot.assign(ones({3})); }, {"assign to \"x\": f32[3] does not fit f32[2]"});
}

TEST(Slot, FreezingAndThawingChangesWhatIsRecorded) {
  Slot slot("x", true);
  slot.set(ones({2}));
  slot.set_requires_grad(false);
  EXPECT_FALSE(mul(slot.value(), 2).requires_grad());
  slot.set_requires_grad(true);
  EXPECT_TRUE(mul(slot.value(), 2).requires_grad());
}

// A state change (sharded, gathered) swaps the tensor; gradients of either go to the one leaf.
TEST(Slot, PresentedTensorsReachTheSameLeaf) {
  Slot slot("x", true);
  slot.set(Tensor::from<float>({1, 2}, {2}));
  const Tensor first = mul(slot.value(), 3);
  slot.present(slot.attach(Tensor::from<float>({10, 20}, {2})));
  const Tensor second = mul(slot.value(), 5);
  backward(sum(add(first, second)));
  EXPECT_EQ(slot.grad().to_vector<double>(), (std::vector<double>{8, 8}));
}

TEST(Slot, AccumulationIsInPlaceAndAccountedAsGradient) {
  Accounting& account = RankContext::current().allocator().accounting();
  const std::int64_t before = account.current(MemoryCategory::gradients);
  Slot slot("x", true);
  slot.set(full({1000}, 3.0));
  const auto pass = [&] { backward(sum(square(slot.value()))); };
  pass();
  EXPECT_EQ(account.current(MemoryCategory::gradients), before + 4000);
  const void* raw = slot.grad().raw();
  pass();
  EXPECT_EQ(slot.grad().raw(), raw) << "the second contribution is added where the first lies";
  EXPECT_EQ(slot.grad().to_vector<double>()[999], 12);
  EXPECT_EQ(account.current(MemoryCategory::gradients), before + 4000);
  const Tensor held = slot.grad();  // a handle on the gradient: its values must not change
  pass();
  EXPECT_EQ(held.to_vector<double>()[0], 12);
  EXPECT_EQ(slot.grad().to_vector<double>()[0], 18);
  slot.clear_grad();
  EXPECT_FALSE(slot.grad().defined());
}

TEST(Slot, TwoSlotsThatGetOneGradientDoNotShareItsFate) {
  Slot a("a", true), b("b", true);
  a.set(ones({3}));
  b.set(ones({3}));
  const Tensor weight = Tensor::from<float>({1, 2, 3}, {3});
  const auto pass = [&] { backward(sum(mul(add(a.value(), b.value()), weight))); };
  pass();
  b.clear_grad();
  pass();
  EXPECT_EQ(a.grad().to_vector<double>(), (std::vector<double>{2, 4, 6}));
  EXPECT_EQ(b.grad().to_vector<double>(), (std::vector<double>{1, 2, 3}));
}

TEST(Slot, AThreadWithoutARankGivesThemNoHook) {
  Slot w("w", true);
  w.set(Tensor::scalar(1.0));
  bool has_run = false;
  std::thread([&] { EXPECT_THROW(w.on_grad_accumulated([&](Slot&) { has_run = true; }), Error); }).join();
  backward(w.value() * 2.0);
  EXPECT_FALSE(has_run);
}

}  // namespace
}  // namespace sherd::testing
