// A resume on other ranks than the save's mesh is for: dp over those there are, in a line; a mesh that is given stays.
#include "tools/train/saved_mesh.h"

#include "tests/support/expect_error.h"
#include "tests/tools/program_here.h"
#include "tests/tools/program_test.h"
#include "tools/train/links.h"

namespace sherd::testing {

using namespace train;

namespace {

/// What a config that a save has completed becomes on `ranks` ranks; `given` are the keys that the user gave.
struct Taken {
  TrainConfig config;
  std::string text;
};
Taken take(TrainConfig config, int ranks, const std::vector<std::string>& given = {}) {
  config.resume = "saves";
  ConfigTable table = bind(config);
  for (const auto& [key, value] : table.values())
    if (std::ranges::find(given, key) != given.end()) table.set(key, value, "a test");
  Taken taken;
  taken.text = take_ranks_there_are(config, table, ranks);
  taken.config = config;
  return taken;
}

TrainConfig on_mesh(const char* mesh, const char* strategy = "full_shard") {
  TrainConfig config;
  config.plan.mesh = mesh;
  config.plan.strategy = strategy;
  return config;
}

TEST(SavedMesh, ThatFitsStays) {
  for (const auto& [mesh, ranks] : {std::pair("", 3), {"dp=2,tp=2", 4}, {"tp=2", 2}, {"replicate=2,dp=3", 6}}) {
    const Taken taken = take(on_mesh(mesh), ranks);
    EXPECT_EQ(taken.config.plan.mesh, mesh);
    EXPECT_EQ(taken.text, "");
  }
}

TEST(SavedMesh, ThatDoesNotFitGivesWayToDpOverTheRanksThereAre) {
  for (const char* mesh : {"dp=2", "dp=2,tp=2", "tp=4"}) {
    const Taken taken = take(on_mesh(mesh), 1);
    EXPECT_EQ(taken.config.plan.mesh, "");
    expect_within(taken.text, {"resume from saves on 1 rank:", mesh, "takes dp=1"});
  }
  expect_within(take(on_mesh("dp=2,tp=2"), 3).text, {"on 3 ranks", "is for 4 ranks", "takes dp=3; pass --mesh"});
}

TEST(SavedMesh, WhatNeedsReplicasGoesWithThem) {
  const std::pair<const char*, const char*> strategies[] = {{"hybrid_shard", "full_shard"},
                                                            {"hybrid_shard_grad_op", "shard_grad_op"},
                                                            {"hybrid_shard_state", "full_shard"},
                                                            {"shard_optimizer", "shard_optimizer"},
                                                            {"no_shard", "no_shard"}};
  for (const auto& [saved, taken] : strategies)
    EXPECT_EQ(take(on_mesh("replicate=2,dp=2", saved), 3).config.plan.strategy, taken) << saved;
  EXPECT_EQ(take(on_mesh("replicate=2,dp=2", "hybrid_shard"), 3, {"strategy"}).config.plan.strategy, "hybrid_shard");
  TrainConfig config = on_mesh("replicate=2,dp=2", "hybrid_shard");
  config.link = "dp=2e9,0;replicate=2e8,0";
  const Taken taken = take(config, 3);
  EXPECT_EQ(taken.config.link, "");
  expect_within(taken.text, {"strategy hybrid_shard", "takes full_shard", "link dp=2e9"});
  config.link = "2e9,0";
  EXPECT_EQ(take(config, 3).config.link, "2e9,0");
}

TEST(SavedMesh, ANumberToReshardToDividesTheRanksOrGoes) {
  TrainConfig config;
  config.plan.reshard_after_forward = 2;
  EXPECT_TRUE(take(config, 4).config.plan.reshard_after_forward == nn::ReshardAfterForward(2));
  const Taken taken = take(config, 3);
  EXPECT_TRUE(taken.config.plan.reshard_after_forward == nn::ReshardAfterForward(true));
  expect_within(taken.text, {"reshard_after_forward 2", "takes true"});
  EXPECT_TRUE(take(config, 3, {"reshard_after_forward"}).config.plan.reshard_after_forward ==
              nn::ReshardAfterForward(2));
}

TEST(SavedMesh, ThatIsGivenStaysAndIsRefusedWithTheWaysOut) {
  const Taken taken = take(on_mesh("dp=2"), 1, {"mesh"});
  EXPECT_EQ(taken.config.plan.mesh, "dp=2");
  EXPECT_EQ(taken.text, "");
  expect_error([] { nn::MeshAxes("dp=2").of(1); }, {"for 2 ranks, this run has 1", "sherd run -n 2", "--mesh \"\""});
}

TEST(SavedMesh, ABatchThatDoesNotDivideNamesRanksThatDo) {
  TrainConfig config;
  config.batch = 12;
  config.resume = "saves";
  config.model.kv_heads = 10;
  expect_error([&] { local_batch(config, 5); }, {"batch = 12", "5 ranks", "go on with 4 ranks", "--mesh dp=1,tp=5"});
  config.model.kv_heads = 8;
  expect_error([&] { local_batch(config, 5); }, {"keeps the batch; go on with 4 ranks"});
  config.plan.micro_batches = 3;
  expect_error([&] { local_batch(config, 3); }, {"3 ranks x 3 micro-batches", "go on with 2 ranks"});
  config.resume.clear();
  expect_error([&] { local_batch(config, 3); }, {"batch = 12", "a multiple of 9"});
}

// ---- the program ----

class SavedMeshProgram : public ProgramTest {
 protected:
  void SetUp() override {
    TrainConfig config = tiny_config(data_);
    config.plan.mesh = "dp=2,tp=2";
    config.steps = 2;
    config.save = save_;
    train_tiny(config, 4);
  }
  const std::string save_ = dir_ / "save";
};

TEST_F(SavedMeshProgram, ASaveOfDpAndTpGoesOnOnOneAndOnThreeRanks) {
  const std::string before = dir_.read("save/step-000002/manifest.json");
  const ProgramEnd one = sherd_here({"train", "--resume", save_, "--steps", "3", "--save", dir_ / "one"});
  EXPECT_EQ(one.status, 0) << one.err;
  expect_within(one.err, {"resume from " + save_ + " on 1 rank: mesh dp=2,tp=2 is for 4 ranks, takes dp=1"});
  const ProgramEnd three = sherd(
      {"run", "-n", "3", "--", SHERD_PROGRAM, "train", "--resume", save_, "--steps", "3", "--save", dir_ / "three"});
  EXPECT_EQ(three.status, 0) << three.err;
  expect_within(three.err, {"on 3 ranks: mesh dp=2,tp=2 is for 4 ranks, takes dp=3"});
  const auto said = three.err.find("takes dp=3");
  EXPECT_EQ(three.err.find("takes dp=3", said + 1), std::string::npos) << "rank 0 alone says it";
  const ProgramEnd five = sherd({"run", "-n", "5", "--", SHERD_PROGRAM, "train", "--resume", save_, "--steps", "3"});
  EXPECT_EQ(five.status, kUsage) << five.err;
  expect_within(five.err, {"batch = 12", "5 ranks", "go on with 4 ranks"});
  const ProgramEnd given = sherd_here({"train", "--resume", save_, "--steps", "3", "--mesh", "dp=2"});
  EXPECT_EQ(given.status, kUsage);
  expect_within(given.err, {"mesh = \"dp=2\"", "this run has 1", "--mesh \"\""});
  EXPECT_EQ(dir_.read("save/step-000002/manifest.json"), before);
}

}  // namespace
}  // namespace sherd::testing
