// AdamW, SGD and clipping against torch.optim in f64: every parameter after every one of five steps.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/optim/sgd.h"
#include "tests/support/golden.h"
#include "tests/support/near.h"

namespace sherd::nn {
namespace {

using testing::Golden;
using testing::near;

// The case's parameters as slots with the oracle's start values.
class GoldenOptimizer : public ::testing::Test {
 protected:
  void start(const std::string& name, const std::vector<std::string>& parameters) {
    name_ = name;
    for (const std::string& p : parameters) {
      const Tensor value = golden("in." + p);
      owned_.push_back(std::make_unique<Parameter>(p, value.shape(), Init::zeros(), DType::f32));
      owned_.back()->set(value);
      parameters_.push_back(owned_.back().get());
    }
  }
  Tensor golden(const std::string& key) const {
    const auto& found = golden_.at(name_ + "." + key);
    return Tensor::from<float>(found.f32, Shape(std::span<const std::int64_t>(found.shape)));
  }
  double number(const char* key) const { return golden_.number(name_, key); }
  void expect_five_steps(Optimizer& optimizer) {
    for (int t = 1; t <= 5; ++t) {
      for (Parameter* p : parameters_) p->set_grad(golden(fmt::format("in.{}.grad_{}", p->name(), t)));
      optimizer.step_and_clear();
      for (Parameter* p : parameters_)
        EXPECT_TRUE(near(p->value(), golden(fmt::format("out.{}.step_{}", p->name(), t)), 1e-6))
            << name_ << " " << p->name() << " step " << t;
    }
  }

  Golden golden_{"optim"};
  std::string name_;
  std::vector<std::unique_ptr<Parameter>> owned_;
  std::vector<Parameter*> parameters_;
};

TEST_F(GoldenOptimizer, AdamWAndItsState) {
  start("adamw", {"matrix", "vector"});
  AdamW optimizer(parameters_, {.lr = number("lr"),
                                .beta1 = number("beta1"),
                                .beta2 = number("beta2"),
                                .eps = number("eps"),
                                .weight_decay = number("weight_decay")});
  expect_five_steps(optimizer);
  for (const OptimizerState& state : optimizer.state())
    EXPECT_TRUE(near(state.slot->value(), golden(fmt::format("out.{}.{}", state.parameter, state.kind)), 1e-6))
        << state.parameter << " " << state.kind;
}

TEST_F(GoldenOptimizer, Sgd) {
  start("sgd", {"matrix", "vector"});
  Sgd optimizer(parameters_, {.lr = number("lr")});
  expect_five_steps(optimizer);
}

TEST_F(GoldenOptimizer, SgdWithMomentumAndDecay) {
  start("sgd_momentum", {"matrix", "vector"});
  Sgd optimizer(parameters_,
                {.lr = number("lr"), .momentum = number("momentum"), .weight_decay = number("weight_decay")});
  expect_five_steps(optimizer);
}

// Clipping happens inside the update: plain SGD with lr 1 from zero shows the clipped gradients, negated.
TEST_F(GoldenOptimizer, ClippingByOneNorm) {
  for (const char* name : {"clip", "clip_below"}) {
    owned_.clear();
    parameters_.clear();
    start(name, {"a", "b"});
    Sgd optimizer(parameters_, {.lr = 1});
    for (Parameter* p : parameters_) {
      p->set_grad(golden("in." + p->name()));
      p->assign(Tensor::from<float>(std::vector<float>(static_cast<std::size_t>(p->numel())), p->shape()));
    }
    const Tensor norm = clip_grad_norm(optimizer, number("max_norm"));
    EXPECT_NEAR(norm.item<double>(), golden("out.norm").item<double>(), 1e-5 * norm.item<double>());
    optimizer.step();
    for (Parameter* p : parameters_) {
      std::vector<float> moved = p->value().to_vector<float>();
      for (float& x : moved) x = -x;
      EXPECT_TRUE(near(Tensor::from<float>(moved, p->shape()), golden("out." + p->name()), 1e-6)) << name;
    }
  }
}

}  // namespace
}  // namespace sherd::nn
