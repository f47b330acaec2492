// Training on meshes: the layout of ranks changes nothing but the rounding.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "tests/support/expect_error.h"
#include "tests/tools/tiny_run.h"
#include "tools/train/trainer.h"

namespace sherd::testing {

using namespace train;

namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct MeshCase {
  const char* mesh;
  int ranks;
};

class TrainerMesh : public ::testing::Test {
 protected:
  TempDir dir_;
  std::string data_ = dir_.write("text.txt", tiny_text());
  TrainConfig gpt_ = tiny_config(data_), llama_ = with_groups(tiny_llama(data_));

  // Two key-value heads, for two ranks of tp; a hidden width that they do not divide.
  static TrainConfig with_groups(TrainConfig config) {
    config.model.heads = 4;
    config.model.kv_heads = 2;
    config.model.hidden = 21;
    resolve(config);
    return config;
  }
};

double largest_difference(const std::vector<double>& actual, const std::vector<double>& expected, std::size_t count) {
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i)
    largest = std::max(largest, std::abs(actual.at(i) - expected.at(i)) / std::abs(expected.at(i)));
  return largest;
}

TEST_F(TrainerMesh, F156_NumbersDoNotDependOnTheMesh) {
  gpt_.model.dropout = 0.2;  // the masks are those of the global batch
  for (const TrainConfig& base : {gpt_, llama_}) {
    const TinyRun one = train_tiny(base, 1);
    for (const auto& [mesh, ranks] : {MeshCase{"tp=2", 2}, {"tp=1", 1}, {"dp=2,tp=2", 4}, {"tp=2,dp=2", 4}})
      for (const bool sequence : {false, true}) {
        TrainConfig config = base;
        config.plan.mesh = mesh;
        config.plan.tensor_parallel.sequence_parallel = sequence;
        const TinyRun many = train_tiny(config, ranks);
        const std::string what = fmt::format("{} on {}, sequence {}", config.model.style, mesh, sequence);
        EXPECT_EQ(many.initial, one.initial) << what;
        EXPECT_LE(largest_difference(many.losses, one.losses, 5), 1e-5) << what;
        EXPECT_LE(largest_difference(many.norms, one.norms, 5), 1e-4) << what;
        EXPECT_NEAR(many.val_loss, one.val_loss, 1e-5) << what;
      }
  }
}

TEST_F(TrainerMesh, WithoutLossParallelAndWithoutFullyShard) {
  const TinyRun one = train_tiny(llama_, 1);
  llama_.plan.mesh = "tp=2";
  for (const bool sequence : {false, true}) {
    llama_.plan.tensor_parallel = {.sequence_parallel = sequence, .loss_parallel = false};
    EXPECT_LE(largest_difference(train_tiny(llama_, 2).losses, one.losses, 5), 1e-5);
  }
  llama_.plan.fully_shard = false;
  EXPECT_LE(largest_difference(train_tiny(llama_, 2).losses, one.losses, 5), 1e-5);
}

TEST_F(TrainerMesh, CompiledStepsAndMicroBatchesAreBitwiseTheEagerOnes) {
  gpt_.model.dropout = 0.2;
  for (TrainConfig config : {gpt_, llama_})
    for (const auto& [mesh, ranks] : {MeshCase{"tp=2", 2}, {"dp=2,tp=2", 4}}) {
      config.plan.mesh = mesh;
      config.plan.tensor_parallel.sequence_parallel = true;
      config.plan.micro_batches = config.model.style == "llama" ? 3 : 1;
      config.steps = 6;
      config.plan.compiled = false;
      const TinyRun eager = train_tiny(config, ranks);
      config.plan.compiled = true;
      const TinyRun compiled = train_tiny(config, ranks);
      EXPECT_EQ(compiled.losses, eager.losses) << config.model.style << " on " << mesh;
      EXPECT_EQ(compiled.norms, eager.norms);
      EXPECT_EQ(compiled.val_loss, eager.val_loss);
      EXPECT_EQ(compiled.final, eager.final);
    }
}

TEST_F(TrainerMesh, F160_F169_AResumedRunContinuesOnThisMeshAndOnAnother) {
  const TempDir checkpoint;
  TrainConfig config = llama_;
  config.plan.mesh = "dp=2,tp=2";
  config.steps = 6;
  const TinyRun whole = train_tiny(config, 4);
  config.steps = 3;
  config.save = checkpoint.path();
  train_tiny(config, 4);
  config.save.clear();
  config.steps = 6;
  config.resume = checkpoint.path();
  const TinyRun same = train_tiny(config, 4);
  const std::vector<double> tail(whole.losses.begin() + 3, whole.losses.end());
  EXPECT_EQ(same.losses, tail);
  EXPECT_EQ(same.final, whole.final);
  config.plan.mesh = "replicate=2,tp=2";
  const TinyRun other = train_tiny(config, 4);
  EXPECT_EQ(other.initial, same.initial);
  EXPECT_LE(largest_difference(other.losses, tail, 3), 1e-5);
}

// The figure of nn/parallel/README.md.
TEST_F(TrainerMesh, F156_FiftyStepsOfALlama) {
  llama_.steps = 50;
  llama_.optimizer.decay_steps = 50;
  const TinyRun one = train_tiny(llama_, 1);
  EXPECT_LT(one.losses.back(), 0.6 * one.losses.front());
  for (const auto& [mesh, ranks] : {MeshCase{"dp=2", 2}, {"tp=2", 2}, {"dp=2,tp=2", 4}, {"replicate=2,dp=2,tp=2", 8}}) {
    llama_.plan.mesh = mesh;
    const TinyRun many = train_tiny(llama_, ranks);
    EXPECT_EQ(many.initial, one.initial) << mesh;
    const double five = largest_difference(many.losses, one.losses, 5);
    const double fifty = largest_difference(many.losses, one.losses, 50);
    fmt::print("{:<24} largest relative difference of the loss: {:.1e} in 5 steps, {:.1e} in 50\n", mesh, five, fifty);
    EXPECT_LE(five, 1e-5) << mesh;
    EXPECT_LE(fifty, 1e-3) << mesh;
  }
}

TEST_F(TrainerMesh, MeshesThatDoNotFitAreErrorsOnEveryRank) {
  const auto refused = [&](const TrainConfig& config, int ranks, std::initializer_list<std::string_view> parts) {
    std::atomic<int> errors = 0;
    run_ranks(ranks, [&](const Group& group) {
      expect_error([&] { Trainer(config, group); }, parts);
      ++errors;
    });
    EXPECT_EQ(errors, ranks);
  };
  TrainConfig config = llama_;
  config.plan.mesh = "dp=2,tp=2";
  refused(config, 2, {"mesh = \"dp=2,tp=2\"", "2"});
  config.plan.mesh = "tp=2";
  config.batch = 5;
  refused(config, 4, {"mesh = \"tp=2\" is for 2 ranks, this run has 4"});
  config.plan.mesh = "dp=2,tp=2";
  refused(config, 4, {"batch = 5", "2 ranks x 1 micro-batches"});
  config.batch = 12;
  config.plan.mesh = "tp=4";
  refused(config, 4, {"\"blocks.0.attn\"", "2 key-value heads", "4 ranks"});
  config.plan.mesh = "dp=2,tp=2";
  config.plan.fully_shard = false;
  refused(config, 4, {"fully_shard = false", "2 separate models"});
}

}  // namespace
}  // namespace sherd::testing
