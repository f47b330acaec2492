// Two tiny language models against PyTorch in f64: the same weights give the same logits, loss and gradients, and ten
// AdamW steps with clipping see the same losses and gradient norms.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "runtime/autograd/autograd.h"
#include "tests/support/golden.h"
#include "tests/support/near.h"

namespace sherd::nn {
namespace {

using testing::Golden;
using testing::near;

Tensor tensor_of(const testing::GoldenTensor& golden) {
  const Shape shape{std::span<const std::int64_t>(golden.shape)};
  return golden.dtype == "I64" ? Tensor::from<std::int64_t>(golden.i64, shape) : Tensor::from<float>(golden.f32, shape);
}

class GoldenModel : public ::testing::TestWithParam<std::string> {
 protected:
  GoldenModel() : name_(GetParam()), golden_(name_), model_(make()) {
    model_->materialize();
    for (const auto& [path, parameter] : model_->named_parameters()) parameter->assign(golden("in." + path));
  }

  std::unique_ptr<LanguageModel> make() const {
    const auto integer = [this](const char* key) { return golden_.integer(name_, key); };
    if (name_ == "llama")
      return std::make_unique<Llama>(Llama::Config{.vocabulary = integer("vocabulary"),
                                                   .tokens = integer("block"),
                                                   .layers = integer("layers"),
                                                   .heads = integer("heads"),
                                                   .kv_heads = integer("kv_heads"),
                                                   .width = integer("width"),
                                                   .hidden = integer("hidden"),
                                                   .rope_theta = golden_.number(name_, "theta"),
                                                   .norm_eps = golden_.number(name_, "norm_eps")});
    return std::make_unique<Gpt>(Gpt::Config{.vocabulary = integer("vocabulary"),
                                             .tokens = integer("block"),
                                             .layers = integer("layers"),
                                             .heads = integer("heads"),
                                             .width = integer("width"),
                                             .bias = golden_.flag(name_, "bias"),
                                             .norm_eps = golden_.number(name_, "norm_eps")});
  }

  Tensor golden(const std::string& key) const { return tensor_of(golden_.at(name_ + "." + key)); }
  Tensor loss() { return (*model_)(golden("in.tokens"), golden("in.targets")); }

  std::string name_;
  Golden golden_;
  std::unique_ptr<LanguageModel> model_;
};

TEST_P(GoldenModel, HasTheParametersOfTheOracle) {
  std::set<std::string> own, expected;
  for (const auto& [path, parameter] : model_->named_parameters()) own.insert(path);
  for (const auto& path : golden_.names(name_, "grad")) expected.insert(path);
  EXPECT_EQ(own, expected);
}

TEST_P(GoldenModel, LogitsAndLoss) {
  EXPECT_TRUE(near((*model_)(golden("in.tokens"), Tensor()), golden("out.logits")));
  EXPECT_TRUE(near(loss(), golden("out.loss")));
}

TEST_P(GoldenModel, Gradients) {
  backward(loss());
  for (const auto& [path, parameter] : model_->named_parameters())
    EXPECT_TRUE(near(parameter->grad(), golden("grad." + path))) << path;
}

TEST_P(GoldenModel, TenStepsOfAdamWWithClipping) {
  const auto number = [this](const char* key) { return golden_.number(name_, key); };
  AdamW optimizer(model_->parameters(), {.lr = number("lr"),
                                         .beta1 = number("beta1"),
                                         .beta2 = number("beta2"),
                                         .eps = number("eps"),
                                         .weight_decay = number("weight_decay"),
                                         .decay_matrices_only = true});
  const auto losses = golden("out.losses").to_vector<double>(), norms = golden("out.norms").to_vector<double>();
  ASSERT_EQ(losses.size(), 10u);
  EXPECT_LT(losses.back(), 0.9 * losses.front()) << "the oracle itself must learn";
  for (std::size_t step = 0; step < losses.size(); ++step) {
    const Tensor value = loss();
    backward(value);
    // Rounding grows with the steps; a wrong rule (bias correction, decay, order of clipping) shows at 1e-2.
    EXPECT_NEAR(value.item<double>(), losses[step], 1e-4) << "step " << step;
    EXPECT_NEAR(clip_grad_norm(optimizer, number("clip")).item<double>(), norms[step], 1e-3) << "step " << step;
    optimizer.step_and_clear();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenModel, ::testing::Values("gpt2", "gpt2_no_bias", "llama"),
                         [](const auto& model) { return model.param; });

}  // namespace
}  // namespace sherd::nn
