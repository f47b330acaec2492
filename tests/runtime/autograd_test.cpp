// The tape: order, hooks, saved tensors, sinks, errors, and that nothing is left behind.
#include "runtime/autograd/autograd.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

/// A slot that wants gradients, holding `values`.
struct Param {
  explicit Param(std::initializer_list<double> values, const std::string& name = "p") : slot(name, true) {
    slot.set(Tensor::from<double>(values, {static_cast<std::int64_t>(values.size())}));
  }
  const Tensor& operator()() const { return slot.value(); }
  std::vector<double> grad() const { return slot.grad().to_vector<double>(); }
  Slot slot;
};

using Values = std::vector<double>;

TEST(Autograd, ChainRuleThroughSharedValues) {
  const Param x({2, 3}), y({5, 7});
  const Tensor product = mul(x(), y());            // used twice
  backward(sum(add(product, mul(product, x()))));  // xy + x^2 y
  EXPECT_EQ(x.grad(), (Values{5 + 2 * 2 * 5, 7 + 2 * 3 * 7}));
  EXPECT_EQ(y.grad(), (Values{2 + 4, 3 + 9}));
}

// Uses of one value are summed in descending order of creation: ((third + second) + first), seen in the rounding.
TEST(Autograd, UsesAreSummedInDescendingCreationOrder) {
  Slot slot("x", true);
  slot.set(Tensor::scalar(1.0, DType::f32));
  const Tensor x = neg(slot.value());  // not a leaf: its uses are summed on the tape
  const Tensor first = mul(x, 1e8), second = mul(x, -1e8), third = mul(x, 1.0);
  // Whatever the order in which the results are used.
  backward(add(third, add(first, second)));
  EXPECT_EQ(slot.grad().item<float>(), -((1.0f + -1e8f) + 1e8f));
  EXPECT_NE((1.0f + -1e8f) + 1e8f, (1e8f + -1e8f) + 1.0f) << "the numbers do not tell the orders apart";
}

// A product adds its gradient to the sum in place, unless the tensor there has another handle.
TEST(Autograd, ProductsExtendAGradientOnlyIfItIsTheirs) {
  const Param x({2, 3}), y({5, 7});
  const Tensor two = full({1, 1}, 2.0, DType::f64), four = full({1, 1}, 4.0, DType::f64);
  const Tensor other = neg(reshape(y(), {2, 1})), h = neg(reshape(x(), {2, 1}));
  const Tensor first = matmul(h, two), second = matmul(h, four);
  const Tensor both = add(h, other);  // runs first in backward: its gradient waits at h and at other, one tensor
  Tensor seen;
  register_grad_hook(other, [&](const Tensor& g) { return seen = g, Tensor(); });
  backward(add(sum(add(first, second)), sum(mul(both, 10))));
  EXPECT_EQ(x.grad(), (Values{-16, -16}));
  EXPECT_EQ(y.grad(), (Values{-10, -10}));
  EXPECT_EQ(seen.to_vector<double>(), (Values{10, 10}));
}

TEST(Autograd, LeafGradientsAccumulateOverUsesAndPasses) {
  const Param x({1, 2});
  const auto pass = [&] { backward(sum(add(mul(x(), 3), square(x())))); };
  pass();
  EXPECT_EQ(x.grad(), (Values{5, 7}));
  pass();
  EXPECT_EQ(x.grad(), (Values{10, 14}));
}

// sum's gradient is one element seen many times; a second pass must not add into it in place.
TEST(Autograd, ABroadcastGradientIsNotWrittenInPlace) {
  Slot slot("x", true);
  slot.set(ones({2, 3}));
  backward(sum(slot.value()));
  backward(sum(slot.value()));
  EXPECT_EQ(slot.grad().to_vector<double>(), Values(6, 2.0));
}

TEST(Autograd, TheRootMayBeALeafOrHaveACotangent) {
  const Param x({4});
  backward(x());
  EXPECT_EQ(x.grad(), Values{1});
  const Param y({1, 2, 3});
  backward(mul(y(), 2), {.grad = Tensor::from<double>({1, 10, 100}, {3})});
  EXPECT_EQ(y.grad(), (Values{2, 20, 200}));
}

TEST(Autograd, WrongRootsAreNamed) {
  const Param x({1, 2});
  expect_error([] { backward(ones({1})); }, {"f32[1] was not computed from anything that requires"});
  expect_error([&] { backward(mul(x(), 2)); }, {"backward from f64[2] needs a cotangent"});
  expect_error([&] { backward(mul(x(), 2), {.grad = ones({2})}); },
               {"the cotangent f32[2] does not match the root f64[2]"});
}

TEST(Autograd, DetachIntegersAndGradModeStopTheTape) {
  const Param x({2, 3});
  EXPECT_TRUE(mul(x(), 2).requires_grad());
  EXPECT_FALSE(mul(x().detach(), 2).requires_grad());
  EXPECT_FALSE(less(x(), x()).requires_grad());
  EXPECT_FALSE(argmax(x(), 0).requires_grad());
  {
    const GradMode off(false);
    EXPECT_FALSE(mul(x(), 2).requires_grad());
    {
      const GradMode on(true);
      EXPECT_TRUE(mul(x(), 2).requires_grad());
    }
    EXPECT_FALSE(mul(x(), 2).requires_grad());
  }
  backward(sum(mul(x(), x().detach())));
  EXPECT_EQ(x.grad(), (Values{2, 3}));
}

TEST(Autograd, FrozenSlotsGetNothing) {
  const Param x({2});
  Slot frozen("frozen");
  frozen.set(Tensor::from<double>({5}, {1}));
  backward(mul(x(), frozen.value()));
  EXPECT_EQ(x.grad(), Values{5});
  EXPECT_FALSE(frozen.grad().defined());
}

// ---- hooks ----

TEST(Autograd, ATensorHookSeesTheWholeGradientAndMayReplaceIt) {
  const Param x({1, 2});
  const Tensor y = mul(x(), 2);
  std::vector<Values> seen;
  register_grad_hook(y, [&](const Tensor& grad) {
    seen.push_back(grad.to_vector<double>());
    return Tensor();
  });
  register_grad_hook(y, [&](const Tensor& grad) { return mul(grad, 10); });
  register_grad_hook(y, [&](const Tensor& grad) {
    seen.push_back(grad.to_vector<double>());
    return Tensor();
  });
  backward(sum(add(y, mul(y, 3))));
  EXPECT_EQ(seen, (std::vector<Values>{{4, 4}, {40, 40}}));
  EXPECT_EQ(x.grad(), (Values{80, 80}));
}

TEST(Autograd, AHookThatReturnsAnotherShapeIsAnError) {
  const Param x({1, 2});
  const Tensor y = mul(x(), 2);
  register_grad_hook(y, [](const Tensor&) { return ones({3}); });
  expect_error([&] { backward(sum(y)); },
               {"a gradient hook on the result of mul_scalar was given f64[2] and returned f32[3]"});
  expect_error([&] { register_grad_hook(x(), [](const Tensor&) { return Tensor(); }); },
               {"use its slot's on_grad_accumulated()"});
}

TEST(Autograd, PostAccumulateHooksRunOncePerPassWhenAllUsesAreIn) {
  Param x({1, 2}), y({3, 4});
  std::vector<std::string> events;
  x.slot.on_grad_accumulated([&](Slot& slot) {
    events.push_back("x " + fmt::format("{}", slot.grad().to_vector<double>()[0]));
    EXPECT_TRUE(in_backward());
  });
  y.slot.on_grad_accumulated([&](Slot&) { events.push_back("y"); });
  // x is used first and last: its last contribution comes after y's only one.
  backward(sum(add(mul(x(), 5), mul(y(), square(x())))));
  EXPECT_EQ(events, (std::vector<std::string>{"y", "x 11"}));
  EXPECT_FALSE(in_backward());
}

TEST(Autograd, EndOfBackwardCallbacksRunAfterAllGradientsAndMayAddMore) {
  Param x({1});
  std::vector<std::string> events;
  x.slot.on_grad_accumulated([&](Slot&) {
    events.push_back("gradient");
    at_end_of_backward([&] {
      events.push_back("end");
      at_end_of_backward([&] { events.push_back("after end"); });
    });
  });
  backward(neg(x()));
  EXPECT_EQ(events, (std::vector<std::string>{"gradient", "end", "after end"}));
  expect_error([] { at_end_of_backward([] {}); }, {"no backward pass is running"});
}

TEST(Autograd, BackwardInsideBackwardIsRefused) {
  Param x({1});
  const Tensor other = neg(x());
  int calls = 0;
  x.slot.on_grad_accumulated([&](Slot&) {
    ++calls;
    expect_error([&] { backward(other); }, {"backward() inside backward()"});
  });
  backward(neg(x()));
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(in_backward());
  EXPECT_EQ(x.grad(), Values{-1});
}

// ---- what the tape keeps ----

TEST(Autograd, WritingASavedTensorIsAnErrorWithBothVersions) {
  Param x({2, 3});
  const Tensor y = square(x());
  x.slot.assign(Tensor::from<double>({5, 6}, {2}));
  expect_error([&] { backward(sum(y)); },
               {"f64[2] was saved for backward and has been written since (version 0, now 1)"});
  // A row that saves nothing does not mind.
  const Tensor z = mul(x(), 2);
  x.slot.assign(Tensor::from<double>({7, 8}, {2}));
  EXPECT_NO_THROW(backward(sum(z)));
}

TEST(Autograd, ASecondPassNeedsRetainGraph) {
  const Param x({3});
  const Tensor y = square(x());
  backward(y, {.retain_graph = true});
  backward(y);
  EXPECT_EQ(x.grad(), Values{12});
  expect_error([&] { backward(y); }, {"backward through square a second time"});
}

std::int64_t held_bytes() { return RankContext::current().allocator().accounting().total(); }

TEST(Autograd, NothingIsLeftOfAPass) {
  const std::int64_t start = held_bytes();
  {
    Param x({1, 2, 3});
    const std::int64_t with_param = held_bytes();
    {
      const Tensor y = sum(exp(mul(square(x()), 0.5)));
      EXPECT_GT(held_bytes(), with_param);
      backward(y);
      EXPECT_EQ(held_bytes(), with_param + 3 * 8 + 8) << "only the gradient and the root's value are left";
    }
    x.slot.clear_grad();
    EXPECT_EQ(held_bytes(), with_param);
    {
      const Tensor unused = exp(square(x()));  // a tape that nobody runs
    }
    EXPECT_EQ(held_bytes(), with_param);
  }
  EXPECT_EQ(held_bytes(), start);
}

// A result that the row saves points to its node, which keeps the result's bytes: a cycle would leak them.
TEST(Autograd, SavedOutputsAreNoCycle) {
  const Param x({1, 2});
  const std::int64_t start = held_bytes();
  {
    const Tensor y = exp(x());
    const Tensor z = softmax(y, 0);
  }
  EXPECT_EQ(held_bytes(), start);
}

TEST(Autograd, AChainOf100000OpsNeedsNoDeepStack) {
  Slot slot("x", true);
  slot.set(Tensor::scalar(1.0, DType::f64));
  const std::int64_t start = held_bytes();
  {
    Tensor y = slot.value();
    for (int i = 0; i < 100'000; ++i) y = mul(y, 1.0);
    backward(y);
    EXPECT_EQ(slot.grad().item<double>(), 1);
  }
  {
    Tensor y = slot.value();
    for (int i = 0; i < 100'000; ++i) y = square(y);  // saves its input: chained through saved tensors too
  }
  slot.clear_grad();
  EXPECT_EQ(held_bytes(), start);
}

TEST(Autograd, ASlotMayGoBeforeItsGraph) {
  Tensor y;
  {
    const Param x({2});
    y = square(x());
  }
  EXPECT_NO_THROW(backward(y));
}

// ---- errors ----

TEST(Autograd, AnErrorInAVjpLeavesTheTapeClean) {
  RankContext& context = RankContext::current();
  Param x({1, 2});
  const Tensor y = mul(x(), 2);
  bool throws = true;
  register_grad_hook(y, [&](const Tensor&) -> Tensor {
    if (throws) fail("stop here");
    return {};
  });
  const std::string path = "layers.3";
  context.module_path = &path;
  const Tensor z = sum(square(y));
  context.module_path = nullptr;
  expect_error([&] { backward(z, {.retain_graph = true}); }, {"stop here"});
  EXPECT_FALSE(in_backward());
  EXPECT_TRUE(context.grad_enabled);
  EXPECT_EQ(context.module_path, nullptr);
  EXPECT_FALSE(x.slot.grad().defined());
  throws = false;
  backward(z);  // no gradient of the failed pass is left in the nodes
  EXPECT_EQ(x.grad(), (Values{8, 16}));
}

TEST(Autograd, ErrorsCarryOpInputsModuleRankAndStep) {
  RankScope rank("rank 3");
  const std::string path = "layers.3.mlp.w1";
  rank.context().module_path = &path;
  rank.context().step = 17;
  expect_error([] { matmul(ones({2, 3}), ones({4, 5})); },
               {"inner dimensions differ: 3 and 4", "op      matmul", "inputs  f32[2,3]  f32[4,5]",
                "module  layers.3.mlp.w1", "rank 3", "step 17"});
}

TEST(Autograd, ErrorsInBackwardCarryTheForwardsModule) {
  RankContext& context = RankContext::current();
  Param x({1, 2});
  const std::string path = "layers.5.norm";
  context.module_path = &path;
  const Tensor y = square(x());
  context.module_path = nullptr;
  x.slot.assign(Tensor::from<double>({5, 6}, {2}));
  expect_error([&] { backward(sum(y)); }, {"of square", "layers.5.norm"});
}

// ---- sinks ----

/// Lets every contribution be added to one buffer, as a unit of fully_shard does.
class BufferSink final : public GradSink {
 public:
  explicit BufferSink(Tensor buffer) : buffer_(std::move(buffer)) {}
  Destination destination(Slot&) override { return {buffer_, std::exchange(has_value_, true)}; }
  void wrote(Slot&) override { events += "w"; }
  void accept(Slot&, Tensor) override { events += "a"; }
  void finish(Slot& slot) override {
    events += "f";
    slot.run_grad_hooks();
  }
  std::string events;

 private:
  Tensor buffer_;
  bool has_value_ = false;
};

TEST(Autograd, EveryContributionLandsInTheSinksBuffer) {
  Param x({1, 2});
  const Tensor buffer = Tensor::from<double>({99, 99}, {2});
  BufferSink sink(buffer);
  x.slot.set_sink(&sink);
  backward(sum(add(square(x()), mul(x(), 3))));
  EXPECT_EQ(buffer.to_vector<double>(), (Values{5, 7}));
  EXPECT_EQ(sink.events, "wwf");
  EXPECT_FALSE(x.slot.grad().defined());
}

// The gradient of a view row is a view, which has no kernel to write with.
TEST(Autograd, GradientsOfViewsLandInTheBufferToo) {
  Slot slot("x", true);
  slot.set(Tensor::from<double>({1, 2, 3, 4, 5, 6}, {2, 3}));
  const Tensor weight = Tensor::from<double>({1, 2, 3, 4, 5, 6}, {3, 2});
  const Values transposed = {1, 3, 5, 2, 4, 6};
  const Tensor buffer = full({2, 3}, 99, DType::f64);
  BufferSink sink(buffer);
  slot.set_sink(&sink);
  backward(sum(mul(transpose(slot.value(), 0, 1), weight)));
  EXPECT_EQ(buffer.to_vector<double>(), transposed);
  backward(sum(mul(transpose(slot.value(), 0, 1), weight)));
  Values twice;
  for (double v : transposed) twice.push_back(2 * v);
  EXPECT_EQ(buffer.to_vector<double>(), twice);
  backward(sum(narrow(slot.value(), 1, 1, 1)));
  EXPECT_EQ(buffer.to_vector<double>(), (Values{2, 7, 10, 4, 9, 12}));
}

TEST(Autograd, ALeafWithAnUnusedBranchStillFinishesOnce) {
  Param x({1, 2});
  int finished = 0;
  x.slot.on_grad_accumulated([&](Slot&) { ++finished; });
  const Tensor y = mul(x(), 2);
  // The comparison's branch gives no gradient, so one recorded use never delivers.
  backward(sum(where(less(y, x()), x(), mul(x(), 3))));
  EXPECT_EQ(finished, 1);
  EXPECT_EQ(x.grad(), (Values{3, 3}));
}

// Whichever thread has made more nodes before: what is made of a node's outputs comes after it.
TEST(Autograd, ATapeGoesFromThreadToThread) {
  for (const int more_nodes : {0, 1000}) {
    const Param x({2, 3});
    Tensor y;
    std::thread([&] {
      const RankScope scope;
      Tensor other = x();
      for (int i = 0; i < more_nodes; ++i) other = mul(other, 1.0);
      y = mul(x(), 2.0);
    }).join();
    backward(sum(add(y, mul(mul(y, 3.0), y))));  // 2 x + 12 x^2
    EXPECT_EQ(x.grad(), (Values{2 + 24 * 2, 2 + 24 * 3})) << more_nodes;
  }
}

}  // namespace
}  // namespace sherd::testing
