// Gpt and Llama as language models: loss at the start, two ways to the loss, causality, gradients of every parameter,
// errors. (PyTorch's logits, gradients and ten steps are in golden_model_test.cpp.)
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "nn/layers/dropout.h"
#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"

namespace sherd::nn {
namespace {

using testing::expect_error;
using testing::near;
using testing::same_bits;

constexpr std::int64_t kV = 37, kT = 9, kB = 3;

Gpt::Config gpt_config() { return {.vocabulary = kV, .tokens = kT, .layers = 2, .heads = 2, .width = 16}; }
Llama::Config llama_config() {
  return {.vocabulary = kV, .tokens = kT, .layers = 2, .heads = 4, .kv_heads = 2, .width = 16, .hidden = 24};
}

std::unique_ptr<LanguageModel> make(const std::string& style) {
  std::unique_ptr<LanguageModel> model;
  if (style == "gpt") model = std::make_unique<Gpt>(gpt_config());
  else model = std::make_unique<Llama>(llama_config());
  model->materialize({3});
  return model;
}

// Values that a small counter scatters over the vocabulary.
Tensor token_grid(std::int32_t stride, std::int64_t b = kB, std::int64_t t = kT) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < b * t; ++i) ids.push_back(static_cast<std::int32_t>((i * stride + i * i) % kV));
  return Tensor::from<std::int32_t>(ids, {b, t});
}

class Models : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<LanguageModel> model_ = make(GetParam());
  Tensor tokens_ = token_grid(5), targets_ = token_grid(11);
};

TEST_P(Models, StartNearTheEntropyOfTheVocabulary) {
  // With deviation 0.02 logits are almost equal, so every token has about probability 1/V.
  EXPECT_NEAR((*model_)(tokens_, targets_).item<double>(), std::log(static_cast<double>(kV)), 0.05);
}

TEST_P(Models, LogitsAndLossAreOneFunction) {
  const Tensor logits = (*model_)(tokens_, Tensor());
  ASSERT_EQ(logits.shape(), (Shape{kB, kT, kV}));
  const auto values = logits.to_vector<double>(), targets = targets_.to_vector<double>();
  double total = 0;
  for (std::size_t row = 0; row < targets.size(); ++row) {
    double sum = 0;
    for (std::size_t v = 0; v < kV; ++v) sum += std::exp(values[row * kV + v]);
    total += std::log(sum) - values[row * kV + static_cast<std::size_t>(targets[row])];
  }
  EXPECT_NEAR((*model_)(tokens_, targets_).item<double>(), total / static_cast<double>(targets.size()), 1e-5);
}

TEST_P(Models, TargetsOfMinusHundredDoNotCount) {
  std::vector<std::int32_t> masked = targets_.to_vector<std::int32_t>();
  for (std::size_t i = kT; i < masked.size(); ++i) masked[i] = -100;  // only the first sequence counts
  const double loss = (*model_)(tokens_, Tensor::from<std::int32_t>(masked, {kB, kT})).item<double>();
  EXPECT_NEAR(loss, (*model_)(narrow(tokens_, 0, 0, 1), narrow(targets_, 0, 0, 1)).item<double>(), 1e-5);
}

TEST_P(Models, ATokenIsSeenByLaterOnesOnly) {
  std::vector<std::int32_t> changed = tokens_.to_vector<std::int32_t>();
  constexpr std::int64_t kPosition = 5;
  changed[kPosition] = static_cast<std::int32_t>((changed[kPosition] + 1) % kV);
  const Tensor before = (*model_)(tokens_, Tensor());
  const Tensor after = (*model_)(Tensor::from<std::int32_t>(changed, {kB, kT}), Tensor());
  for (std::int64_t t = 0; t < kT; ++t) {
    const bool same(same_bits(select(select(after, 0, 0), 0, t), select(select(before, 0, 0), 0, t)));
    EXPECT_EQ(same, t < kPosition) << "position " << t;
  }
  EXPECT_TRUE(same_bits(narrow(after, 0, 1, kB - 1), narrow(before, 0, 1, kB - 1))) << "other sequences";
}

TEST_P(Models, ShortSequencesArePrefixes) {
  const Tensor prefix = (*model_)(contiguous(narrow(tokens_, 1, 0, 4)), Tensor());
  EXPECT_TRUE(near(prefix, narrow((*model_)(tokens_, Tensor()), 1, 0, 4)));
}

// The derivative along one direction near the gradient, per parameter, by central differences in f32. Their rounding is
// some 1e-5, far below the tolerance, while a wrong factor or a missing path changes the slope by more than a
// hundredth.
TEST_P(Models, GradientsOfEveryParameterAreDirectionalDerivatives) {
  for (Parameter* p : model_->parameters())  // larger weights than the initial ones, so that all paths matter
    if (p->shape().size() > 1) p->assign(random_normal(p->shape(), random_key(1, p->name(), "test"), 0, 0.3));
  backward((*model_)(tokens_, targets_));
  for (Parameter* p : model_->parameters()) {
    ASSERT_TRUE(p->grad().defined()) << p->name();
    const auto grad = p->grad().to_vector<double>();
    const auto random = random_normal(p->shape(), random_key(2, p->name(), "test")).to_vector<double>();
    double slope = 0, length = 0;
    std::vector<double> direction(grad.size());
    for (std::size_t i = 0; i < grad.size(); ++i) {
      direction[i] =
          grad[i] + (0.3 * std::abs(grad[i]) + 1e-6) * random[i];  // near the gradient: a slope that is not lost
      length += direction[i] * direction[i];
    }
    length = std::sqrt(length);
    for (std::size_t i = 0; i < grad.size(); ++i) slope += grad[i] * (direction[i] /= length);
    GradMode off(false);
    const auto start = p->value().to_vector<double>();
    const auto loss_at = [&](double step) {
      std::vector<float> moved;
      for (std::size_t i = 0; i < start.size(); ++i)
        moved.push_back(static_cast<float>(start[i] + step * direction[i]));
      p->assign(Tensor::from<float>(moved, p->shape()));
      return (*model_)(tokens_, targets_).item<double>();
    };
    constexpr double kStep = 1e-2;  // the five-point quotient: its error is of order step^4
    const double near_by = loss_at(kStep) - loss_at(-kStep), further = loss_at(2 * kStep) - loss_at(-2 * kStep);
    const double quotient = (8 * near_by - further) / (12 * kStep);
    loss_at(0);
    EXPECT_NEAR(quotient, slope, 1e-2 * std::abs(slope) + 2e-4) << p->name();
  }
}

TEST_P(Models, TooLongSequencesAreNamed) {
  expect_error([&] { (*model_)(token_grid(5, 1, kT + 1), Tensor()); }, {"10 tokens", "9", "module  (model)"});
}

TEST_P(Models, TokensOutsideTheVocabularyAreNamed) {
  expect_error([&] { (*model_)(Tensor::from<std::int32_t>({1, kV}, {1, 2}), Tensor()); }, {"embedding", "37", "tok"});
}

TEST_P(Models, BlocksAreTheUnitsInOrder) {
  const auto blocks = model_->blocks();
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0]->path(), "blocks.0");
  EXPECT_EQ(blocks[1]->path(), "blocks.1");
  EXPECT_EQ(model_->max_tokens(), kT);
}

INSTANTIATE_TEST_SUITE_P(All, Models, ::testing::Values("gpt", "llama"), [](const auto& style) { return style.param; });

double deviation(const Module& model, std::string_view name) {
  double squares = 0;
  const auto values = model.parameter(name).value().to_vector<double>();
  for (double x : values) squares += x * x / static_cast<double>(values.size());
  return std::sqrt(squares);
}

TEST(Gpt, StartsAsGpt2Does) {
  Gpt::Config config = gpt_config();
  config.width = 64;
  config.layers = 8;
  Gpt model(config);
  model.materialize();
  // 4096 samples or more: within 5 %.
  EXPECT_NEAR(deviation(model, "blocks.3.attn.wq.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation(model, "blocks.3.mlp.up.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation(model, "blocks.3.attn.wo.weight"), 0.02 / 4, 0.00025);  // sqrt(2 x 8 layers) = 4
  EXPECT_NEAR(deviation(model, "blocks.3.mlp.down.weight"), 0.02 / 4, 0.00025);
  EXPECT_EQ(deviation(model, "blocks.3.attn.wq.bias"), 0);
  config.scaled_residual_init = false;
  Gpt plain(config);
  plain.materialize();
  EXPECT_NEAR(deviation(plain, "blocks.3.mlp.down.weight"), 0.02, 0.001);
}

// The model of the README, counted by hand: 0.80 M, as nanoGPT prints it without the positions.
// tok 65 x 128, pos 64 x 128, per block 4 x 128^2 + 2 x 4 x 128^2 + 2 x 128, final norm 128; the head is tied.
TEST(Gpt, ShakespeareHasItsNumberOfParameters) {
  const Gpt model({.vocabulary = 65, .tokens = 64, .layers = 4, .heads = 4, .width = 128, .bias = false});
  EXPECT_EQ(model.num_parameters(), 65 * 128 + 64 * 128 + 4 * (12 * 128 * 128 + 2 * 128) + 128);
}

TEST(Gpt, TiedHeadIsOneParameterUntiedIsTwo) {
  Gpt::Config config = gpt_config();
  const Gpt tied(config);
  config.tied_head = false;
  const Gpt untied(config);
  EXPECT_EQ(untied.num_parameters() - tied.num_parameters(), kV * 16);
  EXPECT_EQ(untied.parameter("head.weight").name(), "head.weight");
}

TEST(Gpt, DropoutActsInTrainingOnlyAndFollowsTheStep) {
  const RankScope rank;
  set_seed({1});
  Gpt::Config config = gpt_config();
  config.dropout = 0.3;
  Gpt model(config), without(gpt_config());
  model.materialize({3});
  without.materialize({3});
  const Tensor tokens = token_grid(5), targets = token_grid(11);
  const auto loss_at = [&](std::int64_t step) {
    set_step(step);
    return model(tokens, targets).item<double>();
  };
  const double first = loss_at(0);
  EXPECT_NE(first, loss_at(1));
  EXPECT_EQ(first, loss_at(0));
  model.train(false);
  EXPECT_EQ(loss_at(1), without(tokens, targets).item<double>());
}

TEST(Attention, HeadsMustDivideTheWidthAndShareKeys) {
  expect_error([] { Attention({.width = 10, .heads = 4, .kv_heads = 4}); }, {"width 10", "4 heads"});
  expect_error([] { Attention({.width = 12, .heads = 4, .kv_heads = 3}); }, {"4 heads", "3 key-value heads"});
  expect_error([] { Attention({.width = 12, .heads = 0, .kv_heads = 1}); }, {"0 heads"});
}

}  // namespace
}  // namespace sherd::nn
