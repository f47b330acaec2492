// Saves of an older program, committed (tools/golden/make_saves.sh): this one resumes them to the same bits, and goes
// on as that one did. Oracle: that program.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "nn/checkpoint/full/compare.h"
#include "nn/checkpoint/load/checkpoint_reader.h"
#include "tests/support/source_path.h"
#include "tests/tools/tiny_run.h"

namespace sherd::testing {
namespace {

struct OldSave {
  const char* name;
  int ranks;
  double tolerance;  ///< relative, of losses: kernels of other CPUs add up in another order
};
void PrintTo(const OldSave& save, std::ostream* out) { *out << save.name; }

class OldSaves : public ::testing::TestWithParam<OldSave> {
 protected:
  const std::string folder_ = source_path(fmt::format("tests/golden/saves/{}", GetParam().name));
  TempDir dir_, saved_;

  TrainConfig config() {
    const ckpt::CheckpointReader save(folder_ + "/step-000003");
    TrainConfig config = train_config_from_toml(save.manifest().config, "an old save");
    config.data = dir_.write("text.txt", tiny_text());
    config.resume = folder_;
    config.save = saved_.path();
    config.steps = 6;
    return config;
  }
};

TEST_P(OldSaves, AreResumedToTheSameBits) {
  train_tiny(config(), GetParam().ranks, [](Trainer& trainer) {
    EXPECT_EQ(trainer.first_step(), 3);
    trainer.save(3);
  });
  int tensors = 0;
  ckpt::compare_saves(ckpt::CheckpointReader(folder_ + "/step-000003"), ckpt::CheckpointReader(saved_ / "step-000003"),
                      [&](const ckpt::TensorDifference& tensor) {
                        EXPECT_EQ(tensor.likeness, ckpt::Likeness::equal) << tensor.kind << " " << tensor.name;
                        ++tensors;
                      });
  EXPECT_GT(tensors, 30);
}

TEST_P(OldSaves, GoOnAsTheProgramThatMadeThem) {
  std::ifstream file(folder_ + "/losses");
  std::int64_t step = 0;
  std::vector<double> losses;
  for (double loss = 0; file >> step >> loss;) losses.push_back(loss);
  ASSERT_EQ(losses.size(), 3u);
  const TinyRun run = train_tiny(config(), GetParam().ranks);
  ASSERT_EQ(run.losses.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(run.losses[i], losses[i], GetParam().tolerance * std::abs(losses[i])) << "step " << i + 4;
}

INSTANTIATE_TEST_SUITE_P(Layouts, OldSaves,
                         ::testing::Values(OldSave{"two_axes", 4, 1e-6}, OldSave{"bf16", 2, 5e-3},
                                           OldSave{"offload", 2, 1e-6}, OldSave{"hybrid_shard_state", 4, 1e-6}),
                         [](const auto& save) { return std::string(save.param.name); });

}  // namespace
}  // namespace sherd::testing
