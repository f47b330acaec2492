// When a step runs eagerly, records or replays, and what it says about it.
#include "compile/compile.h"

#include <gtest/gtest.h>

#include "tests/compile/tiny_net.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using Mode = CompiledStep::Mode;

TEST(Compile, RunsThenRecordsThenReplays) {
  int calls = 0;
  auto step = compile_once([&](const Tensor& x) {
    ++calls;
    return x + 1.0;
  });
  EXPECT_EQ(step.why(), "not called yet");
  EXPECT_EQ(step.graph(), nullptr);
  const std::string expected[] = {"ran eagerly: lazy state settles in the first call",
                                  "recorded: there is no graph yet", "replayed", "replayed"};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(step(Tensor::scalar(i)).item<float>(), static_cast<float>(i + 1));
    EXPECT_EQ(step.why(), expected[i]);
  }
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(step.num_graphs(), 1u);
}

TEST(Compile, AnotherShapeIsRecordedOnceAndBothAreKept) {
  TinyNet eager, captured;
  auto step = compile_once([&](const Tensor& x, const Tensor& y) { return captured.train(x, y); });
  const std::int64_t rows[] = {4, 4, 4, 6, 6, 4, 6};
  const Mode modes[] = {Mode::eager,  Mode::record, Mode::replay, Mode::record,
                        Mode::replay, Mode::replay, Mode::replay};
  for (int i = 0; i < 7; ++i) {
    const Tensor x = TinyNet::x(i, rows[i]), y = TinyNet::y(i, rows[i]);
    EXPECT_TRUE(same_bits(step(x, y), eager.train(x, y).detach())) << i;
    EXPECT_EQ(step.mode(), modes[i]) << i << " " << step.why();
    if (i == 3) { EXPECT_EQ(step.why(), "recorded: argument 0 is f32[6,5], the graph has f32[4,5]"); }
  }
  expect_same_state(captured, eager);
  EXPECT_EQ(step.num_graphs(), 2u);
}

TEST(Compile, GuardsSayWhatDiffers) {
  const Tensor x = drawn({2, 3}, "x");
  CompiledStep step([](std::span<const Tensor> in) { return std::vector<Tensor>{in[0] + in.back()}; },
                    {.compare = false});
  const auto call = [&](std::vector<Tensor> in) {
    const std::vector<Tensor> out = step(in);
    EXPECT_TRUE(same_bits(out[0], in[0] + in.back()));
    return step.why();
  };
  call({x, x});
  call({x, x});
  EXPECT_EQ(call({x, x}), "replayed");
  EXPECT_EQ(call({x, drawn({2, 3}, "other")}), "recorded: arguments 0 and 1 no longer share memory as in the graph");
  const Tensor wide = drawn({2, 6}, "wide");
  const auto cut = [&](std::int64_t start) { return narrow(wide, 1, start, 3); };
  EXPECT_EQ(call({cut(0), cut(1)}), "recorded: argument 0 is f32[2,3] with strides [6,1], the graph has f32[2,3]");
  EXPECT_EQ(call({cut(2), cut(3)}), "replayed");
  EXPECT_EQ(call({cut(0), cut(2)}), "recorded: arguments 0 and 1 no longer share memory as in the graph");
  EXPECT_EQ(call({x}), "recorded: 1 arguments, the graph has 2");
  EXPECT_EQ(call({cast(x, DType::f64)}), "recorded: argument 0 is f64[2,3], the graph has f32[2,3]");
  EXPECT_EQ(call({transpose(drawn({3, 2}, "x"), 0, 1)}),
            "recorded: argument 0 is f32[2,3] with strides [1,2], the graph has f64[2,3]");
  EXPECT_EQ(call({x, x}), "replayed");
  const GradMode off(false);
  EXPECT_EQ(call({x, x}), "recorded: recording of gradients is off, the graph was captured with it on");
}

// Two arguments that lay apart are one tensor now: what the step writes into one it would read from the other.
TEST(Compile, MemoryThatIsSharedSinceIsNoticed) {
  const auto run = [](auto& step, const Tensor& x, const Tensor& y) { return step(x, y).template item<float>(); };
  const auto function = [](const Tensor& x, const Tensor& y) {
    copy_into(x, x * 2.0);
    return sum(x + y);
  };
  auto step = compile_once(function);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(step, ones({2}), ones({2})), 6);
  EXPECT_EQ(step.mode(), Mode::replay);
  const Tensor both = ones({2});
  EXPECT_EQ(run(step, both, both), 8);
  EXPECT_EQ(step.why(),
            "recorded: argument 0 and argument 1 share memory that the step writes, in the graph they did not");
  const Tensor again = ones({2});
  EXPECT_EQ(run(step, again, again), 8);
  EXPECT_EQ(step.mode(), Mode::replay);
  EXPECT_EQ(step.num_graphs(), 2u);

  Slot w("w");
  w.set(ones({2}));
  auto with_slot = compile_once([&](const Tensor& x) {
    copy_into(w.value(), w.value() * 2.0);
    return sum(x + w.value());
  });
  for (int i = 0; i < 3; ++i) with_slot(ones({2}));
  EXPECT_EQ(with_slot.mode(), Mode::replay);
  expect_error([&] { with_slot(w.value()); }, {"argument 0", "slot \"w\""});

  // Nothing is written: sharing is nobody's business.
  auto reading = compile_once([](const Tensor& x, const Tensor& y) { return sum(x + y); });
  for (int i = 0; i < 2; ++i) run(reading, ones({2}), ones({2}));
  run(reading, both, both);
  EXPECT_EQ(reading.mode(), Mode::replay);
}

TEST(Compile, FreezingASlotIsNoticed) {
  Slot w("w", true);
  w.set(Tensor::scalar(2));
  auto step = compile_once([&](const Tensor& x) {
    Tensor y = w.value() * x;
    if (y.requires_grad()) backward(y);
    w.clear_grad();
    return y;
  });
  for (int i = 0; i < 3; ++i) step(Tensor::scalar(i));
  w.set_requires_grad(false);
  EXPECT_EQ(step(Tensor::scalar(4)).item<float>(), 8.0f);
  EXPECT_EQ(step.why(), "recorded: slot \"w\" does not want a gradient, in the graph it does");
}

TEST(Compile, StateMadeWhileRecordingIsNotMadeAgain) {
  std::unique_ptr<Slot> momentum;
  auto step = compile_once([&](const Tensor& x) {
    if (!momentum && x.numel() > 2) {
      momentum = std::make_unique<Slot>("momentum");
      momentum->set(zeros(x.shape()));
    }
    if (momentum) momentum->set(momentum->value() + x);
  });
  const Tensor small = ones({2}), large = ones({3});
  for (int i = 0; i < 3; ++i) step(small);
  for (int i = 1; i <= 4; ++i) {
    step(large);
    EXPECT_EQ(momentum->value().to_vector<float>(), std::vector<float>(3, static_cast<float>(i)));
    if (i == 2) {
      EXPECT_EQ(step.why(), "recorded: slot \"momentum\" has a value, before the recorded run it did not");
    }
  }
  EXPECT_EQ(step.mode(), Mode::replay);
}

TEST(Compile, ASlotThatIsGoneIsAnErrorThatNamesIt) {
  auto w = std::make_unique<Slot>("w");
  w->set(Tensor::scalar(2));
  auto step = compile_once([&](const Tensor& x) { return w->value() * x; });
  for (int i = 0; i < 3; ++i) step(Tensor::scalar(1));
  w = std::make_unique<Slot>("w");
  w->set(Tensor::scalar(3));
  expect_error([&] { step(Tensor::scalar(1)); }, {"slot \"w\"", "no longer exists", "compile()"});
}

TEST(Compile, AFailedRecordingIsDropped) {
  bool fails = false;
  auto step = compile_once([&](const Tensor& x) {
    const Tensor y = x + 1.0;
    if (fails) (void)y.item<float>();
    return y;
  });
  step(Tensor::scalar(1));
  fails = true;
  expect_error([&] { step(Tensor::scalar(1)); }, {"item()", "result of add"});
  EXPECT_EQ(step.num_graphs(), 0u);
  fails = false;
  step(Tensor::scalar(1));
  EXPECT_EQ(step.mode(), Mode::record);
  EXPECT_EQ(step(Tensor::scalar(4)).item<float>(), 5.0f);
  EXPECT_EQ(step.mode(), Mode::replay);
}

TEST(Compile, KeepsTheGraphsUsedLast) {
  CompileOptions options;
  options.max_graphs = 2;
  auto step = compile_once([](const Tensor& x) { return x + x; }, options);
  const auto mode_for = [&](std::int64_t rows) {
    step(ones({rows}));
    return step.mode();
  };
  EXPECT_EQ(mode_for(1), Mode::eager);
  EXPECT_EQ(mode_for(1), Mode::record);
  EXPECT_EQ(mode_for(2), Mode::record);
  EXPECT_EQ(mode_for(1), Mode::replay);
  EXPECT_EQ(mode_for(3), Mode::record);  // 2 was unused for longest
  EXPECT_EQ(step.num_graphs(), 2u);
  EXPECT_EQ(mode_for(1), Mode::replay);
  EXPECT_EQ(mode_for(2), Mode::record);
  options.max_graphs = 0;
  expect_error([&] { compile_once([](const Tensor& x) { return x; }, options); }, {"max_graphs"});
}

TEST(Compile, InsideAnotherStepItIsPartOfThatStep) {
  auto inner = compile_once([](const Tensor& x) { return x * 2.0; });
  auto outer = compile_once([&](const Tensor& x) { return inner(x) + 1.0; });
  outer(Tensor::scalar(1));
  outer(Tensor::scalar(1));
  EXPECT_EQ(inner.why(), "ran eagerly: it is part of another captured step");
  ASSERT_NE(outer.graph(), nullptr);
  EXPECT_EQ(outer.graph()->program.nodes.size(), 2u);
  EXPECT_EQ(outer(Tensor::scalar(5)).item<float>(), 11.0f);
}

TEST(Compile, AStepThatWasMovedFromSaysSo) {
  auto step = compile_once([](const Tensor& x) { return x * 2.0; });
  auto moved = std::move(step);
  EXPECT_EQ(moved(Tensor::scalar(1)).item<float>(), 2.0f);
  expect_error([&] { step(Tensor::scalar(1)); }, {"moved from"});  // NOLINT: what it is about
}

TEST(Compile, ResultsCarryNoHistoryInAnyMode) {
  Slot w("w", true);
  w.set(Tensor::scalar(2));
  auto step = compile_once([&](const Tensor& x) { return std::vector<Tensor>{w.value() * x, w.value()}; });
  for (int i = 0; i < 3; ++i)
    for (const Tensor& result : step(Tensor::scalar(1))) EXPECT_FALSE(result.requires_grad()) << step.why();
}

}  // namespace
}  // namespace sherd::testing
