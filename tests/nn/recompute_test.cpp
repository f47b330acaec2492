// Modules whose forward is recomputed in backward. Oracle: the same model without, bit for bit; which ops run again,
// counted in a trace; the bytes of the accounting.
#include "nn/recompute.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "compile/compile.h"
#include "nn/layers/dropout.h"
#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "nn/non_finite.h"
#include "nn/optim/adamw.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/exec/trace.h"
#include "runtime/op/core/host_reads.h"
#include "runtime/op/core/tape_modes.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"

namespace sherd::nn {
namespace {

using testing::expect_error;
using testing::same_bits;

class RecomputeModels : public ::testing::Test {
 protected:
  static constexpr std::int64_t kBatch = 2, kTokens = 8, kWidth = 16, kVocabulary = 19;
  static constexpr std::int64_t kUnit = kBatch * kTokens * kWidth * 4;  // bytes of [B, T, D]

  static std::unique_ptr<LanguageModel> make(std::string_view style, std::string_view policy, std::int64_t layers = 2,
                                             double dropout = 0) {
    set_seed({7});
    set_step(0);
    std::unique_ptr<LanguageModel> model;
    if (style == "gpt")
      model = std::make_unique<Gpt>(Gpt::Config{.vocabulary = kVocabulary,
                                                .tokens = kTokens,
                                                .layers = layers,
                                                .heads = 4,
                                                .width = kWidth,
                                                .dropout = dropout});
    else
      model = std::make_unique<Llama>(Llama::Config{.vocabulary = kVocabulary,
                                                    .tokens = kTokens,
                                                    .layers = layers,
                                                    .heads = 4,
                                                    .kv_heads = 2,
                                                    .width = kWidth,
                                                    .hidden = 24});
    model->materialize({3});
    if (!policy.empty()) recompute_blocks(*model, recompute_policy(policy));
    return model;
  }

  static Tensor ids(std::int64_t start) {
    std::vector<std::int32_t> values;
    for (std::int64_t i = 0; i < kBatch * kTokens; ++i)
      values.push_back(static_cast<std::int32_t>((start + 5 * i + i * i) % kVocabulary));
    return Tensor::from<std::int32_t>(values, {kBatch, kTokens});
  }

  /// Losses of 20 steps, then the parameters.
  static std::vector<Tensor> train(std::string_view style, std::string_view policy, bool is_captured) {
    const RankScope rank;
    const auto model = make(style, policy, 2, 0.1);
    AdamW optimizer(model->parameters(), {.lr = 0.01});
    const auto step = [&](const Tensor& tokens, const Tensor& targets) {
      const Tensor loss = (*model)(tokens, targets);
      backward(loss);
      optimizer.step_and_clear();
      return loss.detach();
    };
    CompiledFunction<Tensor(const Tensor&, const Tensor&)> compiled(step, {});
    std::vector<Tensor> result;
    for (int i = 0; i < 20; ++i) {
      set_step(i);
      const Tensor tokens = ids(i), targets = ids(i + 1);
      result.push_back(is_captured ? compiled(tokens, targets) : step(tokens, targets));
    }
    EXPECT_TRUE(!is_captured || compiled.mode() == CompiledStep::Mode::replay) << compiled.why();
    for (const Parameter* p : model->parameters()) result.push_back(p->value().detach());
    return result;
  }

  /// Calls of a row in backward, and bytes of activations between forward and backward.
  struct Step {
    std::int64_t kept_bytes = 0;
    int linear = 0, attention = 0;
    std::vector<Tensor> gradients{};
  };
  static Step step_of(LanguageModel& model) {
    Step result;
    const Tensor tokens = ids(3), targets = ids(4);
    const Accounting& account = RankContext::current().allocator().accounting();
    const std::int64_t before = account.current(MemoryCategory::activations);
    const Tensor loss = model(tokens, targets);
    result.kept_bytes = account.current(MemoryCategory::activations) - before;
    Trace trace(10'000);
    {
      const Trace::Recording recording(trace);
      backward(loss);
    }
    for (const Span& span : trace.spans()) {
      result.linear += span.name == op::linear.name;
      result.attention += span.name == op::scaled_dot_product_attention.name;
    }
    for (Parameter* p : model.parameters()) {
      result.gradients.push_back(p->grad());
      p->clear_grad();
    }
    return result;
  }
  static void expect_same(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << i;
  }

  const RankScope rank_;
};

TEST_F(RecomputeModels, TrainToTheBitsOfNone) {
  for (const char* style : {"gpt", "llama"}) {
    const std::vector<Tensor> expected = train(style, "none", false);
    for (const char* policy : {"none", "selective", "full"})
      for (const bool is_captured : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", style, policy, is_captured ? "captured" : "eager"));
        expect_same(train(style, policy, is_captured), expected);
      }
  }
}

TEST_F(RecomputeModels, GradientsInBf16HaveTheBitsOfNone) {
  for (const char* style : {"gpt", "llama"}) {
    std::vector<Tensor> expected;
    for (const char* policy : {"none", "selective", "full"}) {
      SCOPED_TRACE(fmt::format("{}, {}", style, policy));
      const auto model = make(style, policy);
      model->cast_to(DType::bf16);
      const Step step = step_of(*model);
      if (expected.empty()) expected = step.gradients;
      expect_same(step.gradients, expected);
    }
  }
}

// Full recomputation runs wq, wk, wv, wo and up of a block of GPT again, of Llama's w1 and w3 instead of up. The last
// product of a block gives what the next one keeps.
TEST_F(RecomputeModels, WhatRunsAgainInABlock) {
  for (const auto& [style, in_mlp] : {std::pair("gpt", 1), std::pair("llama", 2)}) {
    SCOPED_TRACE(style);
    const Step none = step_of(*make(style, "none")), selective = step_of(*make(style, "selective")),
               full = step_of(*make(style, "full"));
    EXPECT_EQ(none.attention, 0);
    EXPECT_EQ(selective.attention, 0);
    EXPECT_EQ(full.attention, 2);
    EXPECT_EQ(selective.linear - none.linear, 2 * (1 + in_mlp));
    EXPECT_EQ(full.linear - none.linear, 2 * (4 + in_mlp));
    expect_same(full.gradients, none.gradients);
    expect_same(selective.gradients, none.gradients);
  }
}

// The table of nn/README.md.
TEST_F(RecomputeModels, WhatABlockKeeps) {
  const auto per_block = [](std::string_view policy) {
    return step_of(*make("gpt", policy, 3)).kept_bytes - step_of(*make("gpt", policy, 2)).kept_bytes;
  };
  const std::int64_t lse = kBatch * 4 * kTokens * 4, statistics = 4 * kBatch * kTokens * 4;
  EXPECT_EQ(per_block("none"), 10 * kUnit + lse + statistics);
  EXPECT_EQ(per_block("selective"), 5 * kUnit + lse);
  EXPECT_EQ(per_block("full"), kUnit);
}

TEST_F(RecomputeModels, APartMayKeepMore) {
  const auto model = make("gpt", "full"), plain = make("gpt", "none");
  for (Module* block : model->blocks())
    for (const auto& child : block->children())
      if (child->name() == "mlp") recompute(*child, {.mode = Recompute::none});
  const Step step = step_of(*model), none = step_of(*plain);
  expect_same(step.gradients, none.gradients);
  EXPECT_EQ(step.linear - none.linear, 2 * 4) << "up's result is kept for gelu";
  const Step full = step_of(*make("gpt", "full"));
  EXPECT_EQ(step.kept_bytes - full.kept_bytes, 2 * 4 * kUnit);
}

TEST_F(RecomputeModels, OnePartAlone) {
  const auto model = make("gpt", "none"), plain = make("gpt", "none");
  for (Module* block : model->blocks())
    for (const auto& child : block->children())
      if (child->name() == "mlp") recompute(*child);
  const Step step = step_of(*model), none = step_of(*plain);
  expect_same(step.gradients, none.gradients);
  EXPECT_EQ(step.linear - none.linear, 2);
  EXPECT_EQ(step.kept_bytes - none.kept_bytes, -2 * 4 * kUnit) << "up's result; the norm before it is cheap";
}

TEST_F(RecomputeModels, WithoutRecordingNothingIsDone) {
  const auto model = make("gpt", "full");
  const GradMode off(false);
  EXPECT_GT((*model)(ids(3), ids(4)).item<float>(), 0);
}

TEST_F(RecomputeModels, WatchesMayLookAtOutputs) {
  const auto model = make("gpt", "full");
  const auto group = make_single_group();
  EXPECT_EQ(first_non_finite(*model, *group, [&] { backward((*model)(ids(3), ids(4))); }), "");
}

TEST_F(RecomputeModels, PoliciesByName) {
  EXPECT_EQ(recompute_policy("none").mode, Recompute::none);
  EXPECT_EQ(recompute_policy("selective").mode, Recompute::selective);
  EXPECT_EQ(recompute_policy("full").mode, Recompute::full);
  expect_error([] { recompute_policy("selectiv"); },
               {"\"selectiv\"", "none, selective, full", "did you mean selective?"});
}

TEST_F(RecomputeModels, WhatCannotBeRecomputedIsRefused) {
  const auto model = make("gpt", "");
  for (const auto& child : model->children())
    if (child->name() == "blocks") expect_error([&] { recompute(*child); }, {"\"blocks\"", "container"});
  recompute(*model->blocks()[1]);
  expect_error([&] { recompute(*model->blocks()[1]); }, {"\"blocks.1\"", "already"});
  expect_error([&] { recompute_blocks(*model); }, {"\"blocks.1\"", "already"});
  EXPECT_TRUE(model->blocks()[0]->hooks().empty());
  Dropout dropout(0.5);
  expect_error([&] { recompute_blocks(dropout); }, {"recompute_blocks", "no list of modules"});
}

/// Does in forward what it is told to.
struct Telling : Layer<Telling> {
  Parameter& weight;
  std::function<Tensor(Tensor)> act;
  Telling() : weight(add_parameter("weight", {4}, Init::ones())) {}
  Tensor forward(const Tensor& x) { return act(x * weight); }
};
struct Wrapper : Layer<Wrapper> {
  Telling& inner;
  Wrapper() : inner(add<Telling>("inner")) {}
  Tensor forward(const Tensor& x) { return square(inner(x)); }
};
struct UnmarkedHook final : ModuleHook {};

TEST_F(RecomputeModels, EffectsAreRefusedByName) {
  Wrapper wrapper;
  wrapper.materialize({1});
  recompute(wrapper);
  const Tensor x = ones({4});
  const auto group = make_single_group();
  using Act = std::function<Tensor(Tensor)>;
  HostReads reads;
  const std::pair<const char*, Act> host_reads[] = {
      {"item() on f32[]", [](Tensor y) { return y * static_cast<double>(sum(y).item<float>()); }},
      {"to_vector() on f32[4]", [](Tensor y) { return y.to_vector<float>(), y; }},
      {"on f32[4]", [](Tensor y) { return to_string(y), y; }},
      {"a read on f32[]", [&](Tensor y) { return reads.push({sum(y)}, [](std::span<const double>) {}), y; }}};
  const std::pair<const char*, Act> collectives[] = {
      {"all_reduce", [&](Tensor y) { return all_reduce(std::move(y), *group); }},
      {"all_gather", [&](Tensor y) { return all_gather(std::move(y), *group, 4); }},
      {"reduce_scatter", [&](Tensor y) { return reduce_scatter(std::move(y), *group); }},
      {"all_to_all", [&](Tensor y) { return all_to_all(std::move(y), *group, 0, 4, 0); }}};
  for (const auto& [says, act] : host_reads) {
    wrapper.inner.act = act;
    expect_error([&] { wrapper(x); }, {says, "\"inner\"", "recomputed"});
  }
  for (const auto& [says, act] : collectives) {
    wrapper.inner.act = act;
    expect_error([&] { wrapper(x); }, {fmt::format("{} in a recomputed segment", says), "inner"});
  }
  wrapper.inner.act = [](Tensor y) { return y; };
  const auto hook = std::make_shared<UnmarkedHook>();
  for (Module* module : {static_cast<Module*>(&wrapper), static_cast<Module*>(&wrapper.inner)}) {
    module->add_hook(hook);
    expect_error([&] { wrapper(x); }, {"module \"" + module->label() + "\"", "UnmarkedHook", "can_recompute()"});
    module->remove_hook(*hook);
  }
  // A part that keeps all runs again with the rest of the module, and so would its hooks.
  recompute(wrapper.inner, {.mode = Recompute::none});
  wrapper.inner.add_hook(hook);
  expect_error([&] { wrapper(x); }, {"module \"inner\"", "UnmarkedHook"});
  wrapper.inner.remove_hook(*hook);
  // What was refused left nothing behind.
  EXPECT_EQ(tape_modes().segment, 0u);
  backward(sum(wrapper(x)));
  EXPECT_TRUE(same_bits(wrapper.inner.weight.grad(), full({4}, 2)));
}

}  // namespace
}  // namespace sherd::nn
