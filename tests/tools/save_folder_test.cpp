// What `--save` and `--resume` do with a folder that holds saves: which run they belong to, how many stay, and which
// one counts when the newest is damaged.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "nn/checkpoint/format/folder_lock.h"
#include "nn/checkpoint/format/saves.h"
#include "nn/checkpoint/load/checkpoint_reader.h"
#include "tests/support/expect_error.h"
#include "tests/tools/program_test.h"
#include "tools/train/weights.h"

namespace sherd::testing {

using namespace train;

namespace {

using namespace ckpt;

namespace fs = std::filesystem;
using Group = std::shared_ptr<ProcessGroup>;

class SaveFolder : public ProgramTest {
 protected:
  SaveFolder() {
    config_.save = folder_;
    config_.save_every = 1;
    config_.steps = 5;
  }
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> steps;
    for (const SavePlace& save : list_saves(folder_)) steps.push_back(save.step);
    return steps;
  }
  std::string run_at(std::int64_t step) const { return read_manifest(fmt::format("{}/step-{:06}", folder_, step)).run; }
  /// The config of a run that goes on from `from`.
  TrainConfig resumed(const std::string& from, std::int64_t until) const {
    TrainConfig config = config_;
    config.resume = from;
    config.steps = until;
    return config;
  }
  void refused(const TrainConfig& config, std::initializer_list<std::string_view> parts, int ranks = 2) const {
    const std::vector<std::int64_t> before = steps();
    run_ranks(ranks, [&](const Group& group) { expect_error([&] { Trainer trainer(config, group); }, parts); });
    EXPECT_EQ(steps(), before);
  }
  void flip_last_bit(const std::string& file) const {
    std::string bytes = dir_.read(file);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    dir_.write(file, bytes);
  }
  std::string folder_ = dir_ / "checkpoint";
  TrainConfig config_ = tiny_config(data_);
  using Steps = std::vector<std::int64_t>;
};

TEST_F(SaveFolder, TheLastSavesStay) {
  train_tiny(config_, 2);
  EXPECT_EQ(steps(), (Steps{5, 4, 3})) << "3 unless --keep says otherwise";
  for (const std::int64_t step : {3, 4, 5}) CheckpointReader(fmt::format("{}/step-{:06}", folder_, step)).verify();
  EXPECT_EQ(run_at(3), run_at(5));
  EXPECT_EQ(run_at(3).size(), 32u);
  config_.keep = 2;
  train_tiny(resumed(folder_, 7), 2);
  EXPECT_EQ(steps(), (Steps{7, 6}));
}

TEST_F(SaveFolder, SavesAtMultiplesOfAStepStay) {
  config_.keep = 1;
  config_.keep_every = 2;
  train_tiny(config_, 2);
  EXPECT_EQ(steps(), (Steps{5, 4, 2}));
}

TEST_F(SaveFolder, SavesAreDueByTime) {
  config_.save_every = 0;
  config_.save_minutes = 1e-9;  // at every step boundary
  const TinyRun timed = train_tiny(config_, 2);
  EXPECT_EQ(steps(), (Steps{5, 4, 3}));
  fs::remove_all(folder_);
  config_.save_minutes = 0;
  const TinyRun whole = train_tiny(config_, 2);
  EXPECT_EQ(steps(), Steps{5});
  EXPECT_EQ(timed.losses, whole.losses);
  EXPECT_EQ(timed.final, whole.final);
}

TEST_F(SaveFolder, ARerunIsRefusedAndLosesNothing) {
  train_tiny(config_, 2);
  const std::string run = run_at(5);
  refused(config_, {folder_, "holds the saves of a run, the newest of step 5", "--resume " + folder_, "--overwrite"});
  const ProgramEnd end = train(2, {"--save", folder_});
  EXPECT_EQ(end.status, kUsage);
  expect_within(end.err, {"holds the saves of a run", "--overwrite"});
  config_.overwrite = true;
  config_.steps = 2;
  train_tiny(config_, 2);
  EXPECT_EQ(steps(), (Steps{2, 1})) << "none of the other run's";
  EXPECT_NE(run_at(2), run);
}

TEST_F(SaveFolder, F162_OverwritingRemovesNothingBeforeItHasSaved) {
  train_tiny(config_, 1);
  config_.overwrite = true;
  run_ranks(1, [&](const Group& group) {
    Trainer trainer(config_, group);
    trainer.train_step(0);
  });
  EXPECT_EQ(steps(), (Steps{5, 4, 3}));
}

TEST_F(SaveFolder, AResumeGoesOnUnderTheSameName) {
  config_.steps = 2;
  train_tiny(config_, 2);
  const std::string run = run_at(2);
  train_tiny(resumed(folder_, 3), 2);
  EXPECT_EQ(steps(), (Steps{3, 2, 1}));
  EXPECT_EQ(run_at(3), run);
  // Into another folder too, where the saves of others are as safe.
  TrainConfig moved = resumed(folder_, 4);
  moved.save = dir_ / "other";
  train_tiny(moved, 2);
  EXPECT_EQ(read_manifest(moved.save).run, run);
  TrainConfig back = resumed(moved.save, 6);
  refused(back, {folder_, "the newest of step 3", "--overwrite"});
}

TEST_F(SaveFolder, GoingBackToAnEarlierSaveAsksFirst) {
  const TinyRun whole = train_tiny(config_, 2);
  const std::string earlier = folder_ + "/step-000003";
  refused(resumed(earlier, 5), {"the newest of step 5", "goes back to step 3", "--overwrite"});
  TrainConfig config = resumed(earlier, 5);
  config.overwrite = true;
  const TinyRun again = train_tiny(config, 2, [](Trainer& trainer) { EXPECT_EQ(trainer.first_step(), 3); });
  EXPECT_EQ(again.final, whole.final);
  EXPECT_EQ(steps(), (Steps{5, 4, 3}));
  train_tiny(resumed(folder_ + "/step-000005", 6), 2);
  EXPECT_EQ(steps(), (Steps{6, 5, 4})) << "the newest may be named";
}

TEST_F(SaveFolder, TwoRunsAtOnceAreRefused) {
  const FolderLock other(folder_, "run 0123 (process 1)");
  refused(config_, {folder_, "in use by run 0123 (process 1)"});
}

// What an unmounted disk leaves: an empty folder of the same name.
TEST_F(SaveFolder, ADiskThatIsGoneEndsTheRunAndNothingIsWrittenInItsPlace) {
  for (const bool is_async : {false, true}) {
    config_.save_async = is_async;
    const std::string gone = dir_ / (is_async ? "gone-async" : "gone");
    run_ranks(2, [&](const Group& group) {
      Trainer trainer(config_, group);
      trainer.train_step(0);
      trainer.save(1);
      trainer.finish_save();
      if (group->rank() == 0) {
        fs::rename(folder_, gone);
        fs::create_directory(folder_);
      }
      trainer.train_step(1);
      expect_error([&] { trainer.save(2); }, {folder_, "not the one that this run has claimed", "--resume " + folder_});
    });
    EXPECT_TRUE(fs::is_empty(folder_));
    ASSERT_EQ(list_saves(gone).size(), 1u);
    CheckpointReader(gone).verify();
  }
}

TEST_F(SaveFolder, ADamagedSaveIsPassedOverOnEveryRankAndSaidOnce) {
  const TinyRun whole = train_tiny(config_, 3);
  flip_last_bit("checkpoint/step-000005/rank-00001.safetensors");
  const ProgramEnd end = train(3, {"--steps", "5", "--resume", folder_, "--save", folder_});
  EXPECT_EQ(end.status, 0) << end.err;
  expect_within(end.err, {"going on with \"" + folder_ + "/step-000004\"", "rank-00001.safetensors", "checksum"});
  EXPECT_EQ(end.err.find("going on with"), end.err.rfind("going on with"));
  EXPECT_EQ(steps(), (Steps{5, 4, 3}));
  CheckpointReader(folder_).verify();
  EXPECT_EQ(fs::path(list_saves(folder_)[0].folder).filename(), "step-000005.1") << "the damaged one was replaced";

  fs::resize_file(dir_ / "checkpoint/step-000005.1/manifest.json", 100);
  fs::remove(dir_ / "checkpoint/step-000004/rank-00002.safetensors");
  const TinyRun rest = train_tiny(resumed(folder_, 5), 3, [](Trainer& t) { EXPECT_EQ(t.first_step(), 3); });
  EXPECT_EQ(rest.final, whole.final);
}

TEST_F(SaveFolder, ANewerLinkIsPassedOverAndSaidOnce) {
  train_tiny(config_, 1);
  fs::create_directory_symlink(folder_ + "/step-000005", folder_ + "/step-000009");
  const ProgramEnd end = train(1, {"--steps", "6", "--resume", folder_, "--save", folder_});
  EXPECT_EQ(end.status, 0) << end.err;
  const std::string notice = folder_ + "/step-000009\" is a link and passed over";
  expect_within(end.err, {notice});
  EXPECT_EQ(end.err.find(notice), end.err.rfind(notice));
}

TEST_F(SaveFolder, WhenNoSaveIsGoodEachReasonIsSaid) {
  config_.steps = 2;
  train_tiny(config_, 2);
  flip_last_bit("checkpoint/step-000002/rank-00000.safetensors");
  fs::resize_file(dir_ / "checkpoint/step-000001/manifest.json", 10);
  refused(resumed(folder_, 3),
          {"step-000002/rank-00000.safetensors", "checksum", "step-000001/manifest.json", "damaged"});
  refused(resumed(dir_ / "nowhere", 3), {"no checkpoint", "nowhere"});
}

TEST_F(SaveFolder, EvalSampleAndInitFromTakeTheNewestGoodOneToo) {
  config_.steps = 2;
  train_tiny(config_, 1);
  const auto values = [&](const std::string& path) {
    const Weights weights(path);
    const auto model = nn::make_language_model(weights.config());
    model->materialize();
    weights.load(*model);
    return model->parameters()[0]->value().to_vector<float>();
  };
  const auto first = values(folder_ + "/step-000001"), second = values(folder_);
  EXPECT_NE(first, second);
  flip_last_bit("checkpoint/step-000002/rank-00000.safetensors");
  EXPECT_EQ(values(folder_), first);
  EXPECT_EQ(sherd({"sample", folder_, "--tokens", "5"}).status, 0);
}

}  // namespace
}  // namespace sherd::testing
