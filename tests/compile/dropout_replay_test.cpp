// Replays draw the masks that the program would have drawn: step and call are counted where a replay sees them.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "nn/layers/dropout.h"
#include "nn/layers/linear.h"
#include "nn/optim/sgd.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "tests/compile/tiny_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_trap.h"

namespace sherd::testing {
namespace {

using Mode = CompiledStep::Mode;

// One module is called twice in a pass, so calls are counted within a step and across the calls of it.
struct DroppingNet : nn::Layer<DroppingNet> {
  nn::Dropout &first, &second;
  Slot w{"w", true};
  DroppingNet() : first(add<nn::Dropout>("first", 0.25)), second(add<nn::Dropout>("second", 0.5)) {
    w.set(drawn({6}, "w"));
  }
  Tensor forward(const Tensor& x) { return second(first(first(x) * w.value())); }
  Tensor pass(const Tensor& x) {
    Tensor loss = sum((*this)(x));
    w.clear_grad();
    backward(loss);
    return loss.detach();
  }
};

void expect_equal_passes(DroppingNet& eager, CompiledFunction<Tensor(const Tensor&)>& step, DroppingNet& captured,
                         int call) {
  const Tensor x = drawn({4, 6}, "x");
  EXPECT_TRUE(same_bits(step(x), eager.pass(x))) << "call " << call << " " << step.why();
  EXPECT_TRUE(same_bits(captured.w.grad(), eager.w.grad())) << "call " << call;
}

TEST(DropoutReplay, WithoutASetStepEveryCallDrawsAnew) {
  const RankScope rank;
  DroppingNet eager, captured;
  CompiledFunction<Tensor(const Tensor&)> step([&](const Tensor& x) { return captured.pass(x); }, {});
  for (int i = 0; i < 6; ++i) expect_equal_passes(eager, step, captured, i);
  EXPECT_EQ(step.mode(), Mode::replay) << step.why();
  const Tensor x = drawn({4, 6}, "x");
  EXPECT_FALSE(same_bits(step(x), step(x)));
}

TEST(DropoutReplay, MicroBatchesOfAStepDrawAnew) {
  const RankScope rank;
  DroppingNet eager, captured;
  CompiledFunction<Tensor(const Tensor&)> step([&](const Tensor& x) { return captured.pass(x); }, {});
  int call = 0;
  for (const int index : {0, 1, 2, 7, 2}) {  // a run may go back, and draws what it drew
    nn::set_step(index);
    for (int micro = 0; micro < 3; ++micro) expect_equal_passes(eager, step, captured, call++);
  }
  EXPECT_EQ(step.num_graphs(), 1u) << step.why();
}

// A step that is left goes back to the calls of the last update, which may have been recorded before there were any.
TEST(DropoutReplay, AnUpdateRecordedBeforeAnythingDrewKeepsTheCallsOfItsReplay) {
  const auto drawn_again = [](bool is_captured) {
    const RankScope rank;
    nn::Linear linear(2, 2);
    linear.materialize(nn::Seed{1});
    nn::Sgd optimizer(linear.parameters(), {.lr = 0.1});
    nn::Dropout drop(0.5);
    const auto train = [&](const Tensor& x) {
      backward(sum(linear(x)));
      optimizer.step_and_clear();
    };
    auto step = compile(train);
    const auto call = [&] { is_captured ? step(ones({1, 2})) : train(ones({1, 2})); };
    for (int i = 0; i < 6; ++i) call();
    (void)drop(ones({16}));
    call();
    (void)drop(ones({16}));
    nn::take_back_random_calls(true);
    return drop(ones({16}));
  };
  EXPECT_TRUE(same_bits(drawn_again(true), drawn_again(false)));
}

TEST(DropoutReplay, EagerCallsInBetweenCount) {
  const RankScope rank;
  DroppingNet eager, captured;
  CompiledFunction<Tensor(const Tensor&)> step([&](const Tensor& x) { return captured.pass(x); }, {});
  for (int i = 0; i < 6; ++i) {
    nn::set_step(i);
    if (i % 2 == 1)
      for (DroppingNet* each : {&eager, &captured}) (void)each->pass(ones({2, 6}));
    expect_equal_passes(eager, step, captured, i);
  }
  EXPECT_EQ(step.mode(), Mode::replay) << step.why();
}

TEST(DropoutReplay, AStepDoesNotBeginWithinACapturedOne) {
  const RankScope rank;
  DroppingNet net;
  int index = 0;
  CompiledFunction<Tensor(const Tensor&)> step(
      [&](const Tensor& x) {
        nn::set_step(index++);
        return net.pass(x);
      },
      {});
  const Tensor x = drawn({4, 6}, "x");
  (void)step(x);  // eagerly
  expect_error([&] { (void)step(x); }, {"set_step()", "before the step", "random_step", "inside a captured step"});
}

// A recording cannot set the count of a row that is gone to 0: a set_step() between has done so for all.
TEST(DropoutReplay, RowsThatAreFirstDrawnWhileRecordingTakeThePlacesOfThoseThatAreGone) {
  const RankScope rank;
  const Tensor x = ones({8});
  nn::set_step(0);
  nn::Dropout first(0.5);
  const Tensor drawn = first(x);
  const std::int64_t before = RankContext::current().allocator().accounting().total();
  for (int i = 0; i < 200; ++i) {
    nn::set_step(i);
    const OpTrap recording(-1);
    nn::Dropout drop(0.5);
    EXPECT_EQ(drop(x).numel(), 8);
  }
  EXPECT_EQ(RankContext::current().allocator().accounting().total(), before);
  nn::set_step(0);
  nn::Dropout late(0.5);
  EXPECT_TRUE(same_bits(late(x), drawn));
}

TEST(DropoutReplay, MoreDropoutsThanThereWasRoomForKeepTheirCounts) {
  const RankScope rank;
  nn::set_step(0);
  nn::Dropout early(0.5);
  const Tensor x = ones({64});
  const Tensor first = early(x);
  std::vector<std::unique_ptr<nn::Dropout>> many;
  for (int i = 0; i < 100; ++i) {
    many.push_back(std::make_unique<nn::Dropout>(0.5));
    EXPECT_TRUE(same_bits((*many.back())(x), first)) << i;  // the same path and call
  }
  const Tensor second = early(x);
  EXPECT_FALSE(same_bits(second, first));
  for (auto& dropout : many) EXPECT_TRUE(same_bits((*dropout)(x), second));
  many.clear();
  nn::Dropout late(0.5);  // in the place of one that is gone
  EXPECT_TRUE(same_bits(late(x), first));
}

}  // namespace
}  // namespace sherd::testing
