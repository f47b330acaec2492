// What the benchmark trains: the model and the work of its peers. The oracle is the loop that peers/step.py has too,
// written out.
#include "tools/bench/training.h"

#include <gtest/gtest.h>

#include <tuple>
#include <variant>

#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/parallel/tensor_parallel.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/ranks.h"
#include "tools/train/model_factory.h"

namespace sherd::bench {
namespace {

using testing::run_ranks;
using Group = std::shared_ptr<ProcessGroup>;

nn::LanguageModelConfig config_of(const std::string& name) { return train::model_config(bench_model(name), 0); }

TEST(BenchTraining, AModelIsThePeersModel) {
  const auto mini = std::get<nn::Gpt::Config>(config_of("mini"));
  EXPECT_EQ(std::tuple(mini.vocabulary, mini.tokens), std::tuple(65, 64));
  EXPECT_EQ(std::tuple(mini.layers, mini.heads, mini.width), std::tuple(4, 4, 128));
  EXPECT_TRUE(mini.hidden == 0 || mini.hidden == 4 * 128);
  EXPECT_TRUE(mini.bias && mini.tied_head && !mini.scaled_residual_init);
  EXPECT_TRUE(mini.tanh_gelu);
  EXPECT_EQ(std::tuple(mini.dropout, mini.norm_eps, mini.init_std), std::tuple(0.0, 1e-5, 0.02));

  const auto llama = std::get<nn::Llama::Config>(config_of("llama1b"));
  EXPECT_EQ(std::tuple(llama.vocabulary, llama.tokens, llama.layers, llama.width), std::tuple(128256, 4096, 16, 2048));
  EXPECT_EQ(std::tuple(llama.heads, llama.kv_heads, llama.hidden), std::tuple(16, 4, 8192));
  EXPECT_FALSE(llama.tied_head || llama.scaled_residual_init);
  EXPECT_EQ(std::tuple(llama.rope_theta, llama.norm_eps, llama.init_std), std::tuple(500000.0, 1e-5, 0.02));
}

TEST(BenchTraining, ItIsShardedWhereThereAreRanksOrCasts) {
  const BenchModel tiny = bench_model("tiny");
  EXPECT_FALSE(train_config(tiny, {}, 1).plan.fully_shard);
  EXPECT_TRUE(train_config(tiny, {}, 2).plan.fully_shard);
  EXPECT_FALSE(train_config(tiny, {.mesh = "tp=2"}, 2).plan.fully_shard);
  const nn::TrainingPlan mixed = train_config(tiny, {.param_dtype = DType::bf16}, 1).plan;
  EXPECT_TRUE(mixed.fully_shard);
  EXPECT_EQ(mixed.param_dtype, DType::bf16);
  EXPECT_EQ(mixed.reduce_dtype, DType::f32);
  EXPECT_TRUE(train_config(tiny, {.strategy = "no_shard"}, 1).plan.fully_shard);
}

// i32 [batch, tokens], other ones on every rank.
std::pair<Tensor, Tensor> batch_of(const BenchModel& m, int rank) {
  const std::uint64_t key = random_key(2, "tokens", "data", static_cast<std::uint64_t>(rank));
  const Tensor text =
      cast(random_uniform({m.batch, m.sequence + 1}, key, 0, static_cast<double>(m.vocabulary)), DType::i32);
  return {contiguous(narrow(text, 1, 0, m.sequence)), contiguous(narrow(text, 1, 1, m.sequence))};
}

std::vector<double> losses_of_the_loop(const BenchModel& m, const nn::TrainingPlan& options, const Group& group) {
  const auto model = make_bench_model(m);
  const bool is_tensor_parallel = options.mesh.has("tp");
  const DeviceMesh mesh(group, is_tensor_parallel ? "tp" : "dp");
  if (is_tensor_parallel) {
    nn::parallelize(*model, mesh, nn::make_plan(config_of(m.name), {.sequence_parallel = true}));
  } else if (group->size() > 1 || options.param_dtype == DType::bf16) {
    nn::UnitPolicy units = options.strategy.value();
    if (options.param_dtype == DType::bf16) units.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
    for (nn::Module* block : model->blocks()) nn::fully_shard(*block, mesh, units);
    nn::fully_shard(*model, mesh, units);
  }
  model->materialize(nn::Seed{1});
  nn::AdamW optimizer(model->parameters(), {.lr = 3e-4, .beta2 = 0.95, .weight_decay = 0.1});
  const auto [tokens, targets] = batch_of(m, is_tensor_parallel ? 0 : group->rank());
  std::vector<double> losses;
  for (int i = 0; i < 6; ++i) {
    Tensor loss = (*model)(tokens, targets);
    backward(loss);
    optimizer.step_and_clear();
    losses.push_back(loss.local().item<double>());
  }
  return losses;
}

TEST(BenchTraining, TheStepIsThePlainLoopBitForBit) {
  struct Case {
    int ranks;
    nn::TrainingPlan options;
  };
  constexpr DType bf16 = DType::bf16;
  const Case cases[] = {{1, {.compiled = true}},
                        {1, {}},
                        {1, {.param_dtype = bf16, .compiled = true}},
                        {2, {.compiled = true}},
                        {2, {.prefetch = false, .param_dtype = bf16, .compiled = true}},
                        {2, {.strategy = "no_shard", .compiled = true}},
                        {2, {.strategy = "no_shard", .param_dtype = bf16, .compiled = true}},
                        {2, {.mesh = "tp=2", .compiled = true}}};
  for (const std::string name : {"tiny", "tiny_llama"})
    for (const Case& c : cases) {
      if (c.options.mesh.has("tp") && name == "tiny_llama") continue;  // one key-value head does not divide by two
      run_ranks(c.ranks, [&](const Group& group) {
        const BenchModel m = bench_model(name);
        const std::vector<double> expected = losses_of_the_loop(m, c.options, group);
        TrainStep step = train_step(m, c.options, group);
        const auto [tokens, targets] = batch_of(m, c.options.mesh.has("tp") ? 0 : group->rank());
        std::vector<double> losses;
        for (int i = 0; i < 6; ++i) losses.push_back(step.update(tokens, targets).loss.item<double>());
        EXPECT_EQ(losses, expected) << name << " on " << c.ranks << " ranks, " << print(c.options);
        EXPECT_EQ(step.how().substr(0, 8), c.options.compiled ? "replayed" : "eager");
      });
    }
}

}  // namespace
}  // namespace sherd::bench
