// A captured optimizer step beside backward passes that are not captured: what it finds in the gradients and in the
// scale changes from call to call, and a replay sees that as the eager step does.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "nn/layers/linear.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/optim/sgd.h"
#include "runtime/autograd/autograd.h"
#include "tests/compile/tiny_net.h"
#include "tests/support/compile_once.h"

namespace sherd::testing {
namespace {

using Mode = CompiledStep::Mode;

// Two layers of which a step may use one only.
struct TwoLayers : nn::Layer<TwoLayers> {
  nn::Linear &a, &b;
  TwoLayers() : a(add<nn::Linear>("a", 5, 6)), b(add<nn::Linear>("b", 6, 6)) {}
  Tensor forward(const Tensor& x, bool uses_b) { return uses_b ? b(relu(a(x))) : a(x); }
};

struct OptimizerTraining {
  TwoLayers net;
  std::unique_ptr<nn::Optimizer> optimizer;

  explicit OptimizerTraining(bool adam) {
    net.materialize(nn::Seed{3});
    if (adam) optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.05});
    else optimizer = std::make_unique<nn::Sgd>(net.parameters(), nn::Sgd::Options{.lr = 0.1});
  }
  void pass(int index, bool uses_b) { backward(mean(square(net(TinyNet::x(index), uses_b) - TinyNet::y(index)))); }
};

void expect_same_parameters(const OptimizerTraining& a, const OptimizerTraining& b, int call) {
  const auto left = a.net.parameters(), right = b.net.parameters();
  for (std::size_t i = 0; i < left.size(); ++i)
    EXPECT_TRUE(same_bits(left[i]->value(), right[i]->value())) << left[i]->name() << " after call " << call;
}

TEST(OptimizerReplay, TheGradientScaleIsThatOfTheCall) {
  for (const bool adam : {false, true}) {
    OptimizerTraining eager(adam), captured(adam);
    auto update = compile_once([&] { captured.optimizer->step_and_clear(); });
    for (int i = 0; i < 8; ++i) {
      eager.pass(i, true);
      captured.pass(i, true);
      if (i != 5) {  // a step without clipping has no scale
        nn::clip_grad_norm(*eager.optimizer, 0.1 / (1 + i));
        nn::clip_grad_norm(*captured.optimizer, 0.1 / (1 + i));
      }
      eager.optimizer->step_and_clear();
      update();
      expect_same_parameters(captured, eager, i);
    }
    EXPECT_EQ(update.mode(), Mode::replay) << update.why();
    EXPECT_EQ(update.num_graphs(), 1u);
  }
}

// A row is a call on the host and a launch on a device: one for the counts, the update, the scale that is used up.
TEST(OptimizerReplay, AStepIsThreeRows) {
  for (const bool adam : {false, true}) {
    OptimizerTraining training(adam);
    auto update = compile_once([&] { training.optimizer->step_and_clear(); });
    for (int i = 0; i < 3; ++i) {
      training.pass(i, true);
      update();
    }
    ASSERT_EQ(update.mode(), Mode::replay) << update.why();
    std::vector<std::string_view> rows;
    for (const ir::GraphNode& node : update.graph()->program.nodes) rows.push_back(node.op->name);
    EXPECT_EQ(rows, (std::vector<std::string_view>{"count_step", adam ? "adamw" : "sgd", "full"}));
  }
}

// Its copy is a value of the program, made anew by each replay.
TEST(OptimizerReplay, AValueThatIsNotDenseIsUpdated) {
  for (const bool adam : {false, true}) {
    OptimizerTraining dense(adam), captured(adam);
    nn::Parameter& weight = captured.net.b.weight;
    weight.set(transpose(contiguous(transpose(weight.value().detach(), 0, 1)), 0, 1));
    ASSERT_FALSE(weight.value().is_contiguous());
    auto update = compile([&] { captured.optimizer->step_and_clear(); });
    for (int i = 0; i < 5; ++i) {
      dense.pass(i, true);
      for (std::size_t p = 0; p < dense.net.parameters().size(); ++p)  // sums of products come in another order
        captured.net.parameters()[p]->set_grad(dense.net.parameters()[p]->grad() + 0.0);
      dense.optimizer->step_and_clear();
      update();
      expect_same_parameters(captured, dense, i);
    }
    EXPECT_EQ(update.mode(), Mode::replay) << update.why();
    EXPECT_FALSE(weight.value().is_contiguous());
  }
}

TEST(OptimizerReplay, AParameterWithItsFirstGradientAfterTheRecordingIsUpdated) {
  for (const bool adam : {false, true}) {
    OptimizerTraining eager(adam), captured(adam);
    auto update = compile_once([&] { captured.optimizer->step_and_clear(); });
    for (int i = 0; i < 9; ++i) {
      const bool uses_b = i > 3 && i != 7;
      eager.pass(i, uses_b);
      captured.pass(i, uses_b);
      eager.optimizer->step_and_clear();
      update();
      expect_same_parameters(captured, eager, i);
      for (const nn::Parameter* p : captured.net.parameters()) EXPECT_FALSE(p->grad().defined()) << p->name();
    }
    EXPECT_EQ(update.mode(), Mode::replay) << update.why();
  }
}

TEST(OptimizerReplay, AParameterThawedAfterTheRecordingIsUpdated) {
  OptimizerTraining eager(false), captured(false);
  for (OptimizerTraining* each : {&eager, &captured}) each->net.b.weight.set_requires_grad(false);
  auto update = compile_once([&] { captured.optimizer->step_and_clear(); });
  for (int i = 0; i < 7; ++i) {
    for (OptimizerTraining* each : {&eager, &captured}) {
      if (i == 4) each->net.b.weight.set_requires_grad(true);
      each->pass(i, true);
    }
    eager.optimizer->step_and_clear();
    update();
    expect_same_parameters(captured, eager, i);
  }
  EXPECT_EQ(update.mode(), Mode::replay) << update.why();
}

TEST(OptimizerReplay, GradientsThatWereNotThereAreCleared) {
  Slot w("w", true), other("other", true);
  w.set(ones({2}));
  other.set(ones({2}));
  auto clear = compile_once([&] { w.clear_grad(); });
  for (int i = 0; i < 3; ++i) clear();
  other.set_grad(ones({2}));  // of no concern to the step
  clear();
  EXPECT_EQ(clear.mode(), Mode::replay) << clear.why();
  for (int i = 0; i < 3; ++i) {
    w.set_grad(ones({2}));
    clear();
    EXPECT_FALSE(w.grad().defined()) << i;
  }
  EXPECT_EQ(clear.mode(), Mode::replay) << clear.why();
}

// A step in backward is asked for outside of the captured step, or not, or otherwise, from call to call.
TEST(OptimizerReplay, AStepInBackwardIsThatOfTheCall) {
  enum class Asked { no, yes, clears };
  using enum Asked;
  OptimizerTraining eager(true), captured(true);
  const auto train = [](OptimizerTraining& training, const Tensor& x, const Tensor& y) {
    Tensor loss = mean(square(training.net(x, true) - y));
    backward(loss);
    training.optimizer->step();
    return loss.detach();
  };
  auto step = compile([&](const Tensor& x, const Tensor& y) { return train(captured, x, y); });
  const auto expect_same = [&](int call) {
    expect_same_parameters(captured, eager, call);
    const auto a = captured.net.parameters(), e = eager.net.parameters();
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i]->grad().defined(), e[i]->grad().defined()) << call;
    EXPECT_EQ(captured.optimizer->torn(), eager.optimizer->torn()) << call;
  };
  int call = 0;
  for (const Asked asked : {yes, yes, yes, no, no, no, no, yes, clears, clears, clears, no, yes, no, no}) {
    for (OptimizerTraining* each : {&eager, &captured}) {
      for (nn::Parameter* p : each->net.parameters()) p->clear_grad();
      if (asked != no) each->optimizer->step_in_backward({.clears_gradients = asked == clears});
    }
    const Tensor x = TinyNet::x(call), y = TinyNet::y(call);
    EXPECT_TRUE(same_bits(step(x, y), train(eager, x, y))) << call << " " << step.why();
    expect_same(call++);
  }
  EXPECT_EQ(step.mode(), Mode::replay) << step.why();
  for (OptimizerTraining* each : {&eager, &captured}) each->pass(call, true);
  expect_same(call);
}

// The pass was not captured, and has made its updates: step() makes those that are left.
TEST(OptimizerReplay, ACapturedStepAfterAPassThatUpdatesMakesTheOthersOnly) {
  OptimizerTraining eager(true), captured(true);
  auto update = compile([&](const Tensor&) { captured.optimizer->step_and_clear(); });
  for (int i = 0; i < 12; ++i) {
    for (OptimizerTraining* each : {&eager, &captured}) {
      if (i % 6 == 5) each->optimizer->step_in_backward();
      each->pass(i, true);
    }
    eager.optimizer->step_and_clear();
    update(ones({1}));
    expect_same_parameters(captured, eager, i);
    EXPECT_EQ(captured.optimizer->torn(), "") << i;
  }
}

// The layer that sits steps out has a count of its own from then on: graphs of before do not fit, later ones settle.
TEST(OptimizerReplay, CountsOfUpdatesAreThoseOfTheEagerSteps) {
  OptimizerTraining eager(true), captured(true);
  auto update = compile_once([&] { captured.optimizer->step_and_clear(); });
  const std::string uses_b = "1111001101101111";
  for (int i = 0; i < static_cast<int>(uses_b.size()); ++i) {
    for (OptimizerTraining* training : {&eager, &captured})
      training->pass(i, uses_b[static_cast<std::size_t>(i)] == '1');
    eager.optimizer->step_and_clear();
    update();
    expect_same_parameters(captured, eager, i);
  }
  EXPECT_EQ(update.mode(), Mode::replay) << update.why();
  const auto counts = captured.optimizer->counts(), expected = eager.optimizer->counts();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(counts[i].slot->value().item<float>(), i < 2 ? 16 : 12) << counts[i].parameter;
    EXPECT_TRUE(same_bits(counts[i].slot->value(), expected[i].slot->value())) << counts[i].parameter;
  }
}

}  // namespace
}  // namespace sherd::testing
