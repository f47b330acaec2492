// A step is recorded twice: what the host changes from call to call is an Error that names it, and what the library was
// told is followed.
#include <gtest/gtest.h>

#include <optional>

#include "compile/compile.h"
#include "nn/layers/dropout.h"
#include "nn/layers/linear.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/saved_policy.h"
#include "runtime/op/rows/ops.h"
#include "tests/compile/tiny_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

using Mode = CompiledStep::Mode;

TEST(Compare, AStepIsRecordedTwiceThenReplayed) {
  TinyNet eager, captured;
  auto step = compile([&](const Tensor& x, const Tensor& y) { return captured.train(x, y); });
  const std::string expected[] = {"ran eagerly: lazy state settles in the first call",
                                  "recorded: there is no graph yet", "recorded: the second time, to compare",
                                  "replayed", "replayed"};
  for (int i = 0; i < 5; ++i) {
    const Tensor x = TinyNet::x(i, 4), y = TinyNet::y(i, 4);
    EXPECT_TRUE(same_bits(step(x, y), eager.train(x, y).detach())) << i;
    EXPECT_EQ(step.why(), expected[i]);
  }
  expect_same_state(captured, eager);
  EXPECT_EQ(step.num_graphs(), 1u);
}

/// x times a number of the host, in a module with a name.
struct Scaled : nn::Layer<Scaled> {
  double factor = 1;
  Tensor forward(const Tensor& x) { return mul(x, factor); }
};
struct Outer : nn::Layer<Outer> {
  Scaled& scaled;
  Outer() : scaled(add<Scaled>("scaled")) {}
  Tensor forward(const Tensor& x) { return scaled(x); }
};

TEST(Compare, ANumberOfTheHostIsNamedWithRowModuleAndBothValues) {
  Outer net;
  auto step = compile([&](const Tensor& x) { return net(x); });
  const auto call = [&](double factor) {
    net.scaled.factor = factor;
    return step(Tensor::scalar(1)).item<float>();
  };
  EXPECT_EQ(call(1), 1);
  EXPECT_EQ(call(2), 2);
  expect_error([&] { call(3); }, {"mul", "in scaled", "value was 2 and is 3", "argument", "slot", ".compare"});
  EXPECT_EQ(step.num_graphs(), 0u);
  EXPECT_EQ(call(4), 4) << "recorded again";
  expect_error([&] { call(5); }, {"value was 4 and is 5"});
  EXPECT_EQ(call(6), 6);
  EXPECT_EQ(call(6), 6);
  EXPECT_EQ(call(6), 6);
  EXPECT_EQ(step.mode(), Mode::replay);
}

TEST(Compare, WithoutItTheRecordedNumberStays) {
  double factor = 0;
  auto step = compile([&](const Tensor& x) { return mul(x, factor); }, {.compare = false});
  for (const double expected : {1, 2, 2, 2}) {
    factor += 1;
    EXPECT_EQ(step(Tensor::scalar(1)).item<float>(), static_cast<float>(expected));
  }
}

TEST(Compare, BranchesTensorsOfTheHostAndResultsThatChangeAreNamed) {
  int call = 0;
  const auto third_of = [&](auto function) {
    const auto step = std::make_shared<decltype(compile(function))>(compile(function));
    for (call = 0; call < 2; ++call) (*step)(ones({2}), ones({2}));
    return [step, &call] {
      call = 2;
      (*step)(ones({2}), ones({2}));
    };
  };
  using Two = const Tensor&;
  expect_error(third_of([&](Two x, Two y) { return call < 2 ? add(x, y) : mul(x, y); }), {"mul", "where add was"});
  expect_error(third_of([&](Two x, Two y) { return call < 2 ? add(x, y) : relu(add(x, y)); }),
               {"relu", "now and was not before"});
  expect_error(third_of([&](Two x, Two y) { return call < 2 ? relu(add(x, y)) : add(x, y); }), {"relu", "no more"});
  expect_error(third_of([&](Two x, Two y) { return add(x, call < 2 ? y : x); }), {"add", "input 1", "another"});
  expect_error(third_of([&](Two x, Two) { return add(x, Tensor::scalar(call)); }), {"add: input 1", "was 1 and is 2"});
  const Tensor kept[] = {ones({2}), ones({2}), full({2}, 3)};
  expect_error(third_of([&](Two x, Two) { return add(x, kept[call]); }), {"add: input 1", "made anew"});
  expect_error(third_of([&](Two x, Two y) {
                 const Tensor a = relu(x), b = relu(y);
                 return call < 2 ? a : b;
               }),
               {"result 0 of the step"});
  Slot w("w"), v("v");
  for (Slot* slot : {&w, &v}) slot->set(ones({2}));
  expect_error(third_of([&](Two x, Two) {
                 (call < 2 ? w : v).set(relu(x));
                 return x;
               }),
               {"\"v\"", "\"w\""});
}

// The same rows on the same values, so that only what becomes of the results tells them apart.
TEST(Compare, PartsOfArgumentsSlotsAndSumsThatChangeAreNamed) {
  Slot w("w", true);
  w.set(ones({2}));
  const auto expect_named = [](const auto& body, std::initializer_list<std::string_view> parts) {
    int call = 0;
    auto step = compile([&](const Tensor& x) { return body(x, call++ < 2); });
    for (int i = 0; i < 2; ++i) step(ones({4}));
    expect_error([&] { step(ones({4})); }, parts);
    EXPECT_EQ(step.num_graphs(), 0u);
  };
  expect_named([](const Tensor& x, bool is_first) { return relu(narrow(x, 0, is_first ? 0 : 2, 2)); },
               {"relu: input 0", "another tensor"});
  expect_named([](const Tensor& x, bool is_first) { return narrow(x, 0, is_first ? 0 : 2, 2); },
               {"result 0 of the step", "another tensor"});
  expect_named(
      [&](const Tensor& x, bool is_first) {
        const Tensor y = relu(narrow(x, 0, 0, 2)).detach();
        if (is_first) w.set_grad(y);
        else w.set(y);
        return y;
      },
      {"\"w\""});
  w.clear_grad();
  const auto buffer = zeros({2});
  expect_named(
      [&](const Tensor& x, bool is_first) {
        copy_into(buffer, narrow(x, 0, 0, 2), !is_first);
        return sum(x);
      },
      {"now adds to its result"});
}

TEST(Compare, EqualTensorsThatAreMadeAnewAreNoChange) {
  auto step = compile([](const Tensor& x) { return add(x, Tensor::scalar(2)); });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(step(Tensor::scalar(i)).item<float>(), static_cast<float>(i + 2));
  EXPECT_EQ(step.mode(), Mode::replay);
}

TEST(Compare, ArgumentsThatShareMemoryInOneOfTheCallsAreNoChange) {
  auto step = compile([](const Tensor& x, const Tensor& y) { return sum(x + y); });
  const Tensor both = ones({2});
  step(ones({2}), ones({2}));
  EXPECT_EQ(step(ones({2}), ones({2})).item<float>(), 4);
  EXPECT_EQ(step(both, both).item<float>(), 4);
  EXPECT_EQ(step(ones({2}), both).item<float>(), 4);
  EXPECT_EQ(step.mode(), Mode::replay) << step.why();
}

// ---- arguments that are something else, too ----

// A replay would read the argument in both places.
TEST(Compare, ATensorOfTheStepThatIsAlsoAnArgumentIsNamed) {
  const auto expect_named = [](const Tensor& base, const auto& body, std::string_view row) {
    auto step = compile([&](const Tensor& x) { return body(x, base); });
    for (int i = 0; i < 2; ++i) step(base);
    expect_error([&] { step(base); }, {row, "input 1", "holds itself", "argument 0", "pass a copy"});
    const Tensor other = full({2}, 10.0);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(step(other), body(other, base))) << step.why();
    EXPECT_EQ(step.mode(), Mode::replay);
  };
  const auto minus = [](const Tensor& x, const Tensor& base) { return x - base; };
  expect_named(full({2}, 3.0), minus, "sub");
  expect_named(narrow(full({6}, 3.0), 0, 2, 2), minus, "sub");
  expect_named(full({2}, 3.0), [](const Tensor& x, const Tensor& base) { return x + narrow(base, 0, 1, 1); }, "add");
}

// Several places of one batch, which the recordings see where it lies.
TEST(Compare, ArgumentsAreTheSameTensorsToTheCallerInEveryCall) {
  std::vector<std::uint64_t> storages;
  auto step = compile([&](const Tensor& x, const Tensor& y, const Tensor& z) {
    storages.push_back(x.storage()->id());
    copy_into(z, x * 2.0);
    return std::vector<Tensor>{x - y, z};
  });
  for (int i = 0; i < 5; ++i) {
    const Tensor batch = drawn({3, 9}, "batch", static_cast<std::uint64_t>(i));
    const Tensor x = narrow(batch, 1, 0, 8), y = narrow(batch, 1, 1, 8), z = zeros({3, 8});
    const std::vector<Tensor> results = step(x, y, z);
    EXPECT_TRUE(same_bits(results[0], x - y)) << i;
    EXPECT_TRUE(same_bits(z, x * 2.0)) << "written where the caller sees it, in call " << i;
    EXPECT_EQ(results[1].storage(), z.storage()) << i;
    EXPECT_EQ(storages.back() != x.storage()->id(), i >= 2) << i;
  }
  EXPECT_EQ(step.mode(), Mode::replay);
}

TEST(Compare, WhatTheStepWritesInTheSecondRecordingOnlyReachesTheCaller) {
  int call = 0;
  auto step = compile([&](const Tensor& x) {
    if (call == 2) copy_into(x, full({2}, 7.0));
    return sum(x);
  });
  const Tensor x = ones({2});
  for (; call < 2; ++call) step(x);
  expect_error([&] { step(x); }, {"changes from call to call"});
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{7, 7}));
}

// ---- what the library was told ----

struct Dropped : nn::Layer<Dropped> {
  nn::Linear& linear;
  nn::Dropout& dropout;
  Dropped() : linear(add<nn::Linear>("linear", 4, 4)), dropout(add<nn::Dropout>("drop", 0.5)) {}
  Tensor forward(const Tensor& x) { return dropout(linear(x)); }
};

TEST(Compare, TrainingEvaluationAndAShortBatchAreKeptSideBySide) {
  Dropped eager, captured;
  for (Dropped* net : {&eager, &captured}) net->materialize(nn::Seed{3});
  auto step = compile([&](const Tensor& x) { return captured(x); });
  std::vector<Mode> modes;
  std::vector<std::string> whys;
  for (int round = 0; round < 4; ++round)
    for (const auto& [trains, rows] : {std::pair(true, 6), {true, 6}, {true, 2}, {false, 6}, {false, 6}, {false, 2}}) {
      for (Dropped* net : {&eager, &captured}) net->train(trains);
      const Tensor x = drawn({rows, 4}, "x", modes.size());
      EXPECT_TRUE(same_bits(step(x), eager(x).detach())) << modes.size() << " " << step.why();
      modes.push_back(step.mode());
      whys.push_back(step.why());
    }
  EXPECT_EQ(step.num_graphs(), 4u);
  for (std::size_t i = 12; i < modes.size(); ++i) EXPECT_EQ(modes[i], Mode::replay) << i;
  EXPECT_EQ(whys[3], "recorded: drop training is false, in the graph it is true");
}

TEST(Compare, TheLeastRecentlyUsedOfTooManyGoesAndThatIsSaidOnce) {
  auto step = compile([](const Tensor& x) { return x + x; }, {.max_graphs = 2});
  ::testing::internal::CaptureStderr();
  for (int round = 0; round < 3; ++round)
    for (const std::int64_t rows : {1, 2, 3}) step(ones({rows}));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_NE(said.find("max_graphs = 2"), std::string::npos) << said;
  EXPECT_NE(said.find("argument 0 is f32["), std::string::npos) << said;
}

/// Negates what a module returns.
struct Negating final : nn::ModuleHook {
  bool maps_outputs() const override { return true; }
  void map_output(nn::Module&, Tensor& tensor, nn::TensorPlace) override { tensor = neg(tensor); }
};

TEST(Compare, HooksOfModulesThatComeAndGoAreFollowed) {
  Dropped net;
  net.materialize(nn::Seed{3});
  net.train(false);
  auto step = compile([&](const Tensor& x) { return net(x); });
  const Tensor x = drawn({2, 4}, "x");
  const Tensor plain = net(x).detach(), negated = neg(plain);
  const auto hook = std::make_shared<Negating>();
  std::vector<Mode> modes;
  for (const bool hooked : {false, false, false, false, true, true, true, false, false, true}) {
    if (hooked && net.linear.hooks().empty()) net.linear.add_hook(hook);
    if (!hooked) net.linear.remove_hook(*hook);
    EXPECT_TRUE(same_bits(step(x), hooked ? negated : plain)) << modes.size() << " " << step.why();
    modes.push_back(step.mode());
  }
  EXPECT_EQ(modes[3], Mode::replay);
  EXPECT_EQ(modes[6], Mode::replay);
  EXPECT_EQ(modes[7], Mode::replay) << "the first graph is good again";
  EXPECT_EQ(modes[9], Mode::record) << "a hook that is added again is another one";
}

// The root's forward does not run in the step.
TEST(Compare, HooksOfAModuleThatIsCalledByItselfAreFollowed) {
  Dropped net;
  net.materialize(nn::Seed{3});
  auto step = compile([&](const Tensor& x) { return net.linear(x); });
  const Tensor x = drawn({2, 4}, "x"), plain = net.linear(x).detach();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(step(x), plain));
  EXPECT_EQ(step.mode(), Mode::replay);
  net.linear.add_hook(std::make_shared<Negating>());
  EXPECT_TRUE(same_bits(step(x), neg(plain)));
  EXPECT_EQ(step.mode(), Mode::record);
}

// Nothing of it is in the graph but what was read of it.
TEST(Compare, AModuleInThePlaceOfAnotherIsFollowed) {
  auto dropout = std::make_unique<nn::Dropout>(0.5);
  auto step = compile([&](const Tensor& x) { return (*dropout)(x); });
  const Tensor x = ones({64});
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(same_bits(step(x), x));
  EXPECT_EQ(step.mode(), Mode::replay);
  dropout = std::make_unique<nn::Dropout>(0);
  EXPECT_TRUE(same_bits(step(x), x)) << step.why();
}

TEST(Compare, HooksOfGradientsAreFollowed) {
  Dropped net;
  net.materialize(nn::Seed{3});
  int runs = 0;
  auto step = compile([&](const Tensor& x) { backward(sum(net(x))); });
  const auto hook = [&](Slot&) { ++runs; };
  for (int i = 0; i < 4; ++i) step(ones({2, 4}));
  net.linear.weight.on_grad_accumulated(hook, {.capturable = true});
  step(ones({2, 4}));
  EXPECT_EQ(step.mode(), Mode::record);
  EXPECT_NE(step.why().find("gradient hooks"), std::string::npos) << step.why();
  EXPECT_EQ(runs, 1);
  net.linear.weight.on_grad_accumulated([](Slot&) {});
  expect_error([&] { step(ones({2, 4})); }, {"not marked capturable"});
}

// A step that leaves a mode otherwise than it found it is not replayed where that would be missed.
TEST(Compare, AStepMayChangeWhatItReads) {
  Dropped eager, captured;
  for (Dropped* net : {&eager, &captured}) net->materialize(nn::Seed{3});
  const auto both = [](Dropped& net, const Tensor& x) {
    net.train(false);
    const Tensor evaluated = net(x);
    net.train(true);
    return evaluated + net(x);
  };
  auto step = compile([&](const Tensor& x) { return both(captured, x); });
  std::vector<Mode> modes;
  for (int i = 0; i < 8; ++i) {
    if (i == 5)
      for (Dropped* net : {&eager, &captured}) net->train(false);
    const Tensor x = drawn({6, 4}, "x", static_cast<std::uint64_t>(i));
    EXPECT_TRUE(same_bits(step(x), both(eager, x).detach())) << i << " " << step.why();
    EXPECT_TRUE(captured.training()) << "as the step leaves it, in call " << i;
    modes.push_back(step.mode());
  }
  EXPECT_EQ(modes[4], Mode::replay);
  EXPECT_EQ(modes[5], Mode::record);
  EXPECT_EQ(modes[7], Mode::replay);
}

TEST(Compare, AScopeAroundTheStepThatAReplayWouldMissIsRefused) {
  struct Keeps final : SavedPolicy {
    std::unique_ptr<Packed> pack(const Tensor&) override { return nullptr; }
  } policy;
  auto step = compile([](const Tensor& x) { return x + x; });
  const SavedPolicy::Scope scope(policy);
  expect_error([&] { step(ones({2})); }, {"within a scope", "open the scope in the step"});
}

}  // namespace
}  // namespace sherd::testing
