// What a run has that nobody gave: learning rate at the end, config file, units of bytes; and what a mistyped name
// gets.
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/tensor/nearest.h"
#include "tests/support/expect_error.h"
#include "tests/tools/program_here.h"
#include "tests/tools/tiny_run.h"
#include "tools/train/config.h"
#include "tools/train/exit_status.h"
#include "tools/train/metrics.h"
#include "tools/train/train_step.h"

namespace sherd::testing {

using namespace train;

namespace {

using Args = std::vector<std::string_view>;

TrainConfig load(const Args& args) { return load_train_config(args).value(); }

// ---- the learning rate at the end ----

TEST(Defaults, MinLrIsATenthOfLrUnlessItIsGiven) {
  const TempDir dir;
  const std::string file = dir.write("a.toml", "[optimizer]\nlr = 4e-2\n"),
                    both = dir.write("b.toml", "[optimizer]\nlr = 4e-2\nmin_lr = 0\n");
  EXPECT_DOUBLE_EQ(load({"--data", "x"}).optimizer.min_lr, 1e-4);
  EXPECT_DOUBLE_EQ(load({"--data", "x", "--optimizer.lr", "1e-5"}).optimizer.min_lr, 1e-6);
  EXPECT_DOUBLE_EQ(load({file}).optimizer.min_lr, 4e-3);
  EXPECT_DOUBLE_EQ(load({file, "--optimizer.lr", "1e-5"}).optimizer.min_lr, 1e-6);
  EXPECT_EQ(load({both}).optimizer.min_lr, 0) << "zero is a rate";
  EXPECT_DOUBLE_EQ(load({both, "--optimizer.min-lr", "-1"}).optimizer.min_lr, 4e-3);
  expect_error([&] { load({both, "--optimizer.min-lr", "-0.5"}); }, {"optimizer.min_lr", "-0.5", "0.04"});
  expect_error([&] { load({file, "--optimizer.min-lr", "1"}); }, {"optimizer.min_lr", "0.04", "got 1"});
}

TEST(Defaults, TheMinLrThatWasUsedIsWritten) {
  TrainConfig config;
  config.optimizer.lr = 1e-5;
  resolve(config);
  const double used = config.optimizer.min_lr;
  EXPECT_DOUBLE_EQ(used, 1e-6);
  EXPECT_EQ(train_config_from_toml(to_toml(config), "save").optimizer.min_lr, used);
  EXPECT_NE(header_line(config, 1).find(fmt::format("\"min_lr\":{}", used)), std::string::npos)
      << header_line(config, 1);
  EXPECT_EQ(schedule_of(config).at(std::int64_t{1} << 40), used);
  EXPECT_NE(train_help().find("lr / 10 (default 0.0001)"), std::string::npos);
}

// ---- resumes ----

class ResumedDefaults : public ::testing::Test {
 protected:
  void SetUp() override {
    TrainConfig config = tiny_config(data_);
    config.steps = 2;
    config.optimizer.lr = 1e-2;
    config.optimizer.min_lr = 5e-3;  // not what lr / 10 gives
    config.plan.compiled = true;
    config.plan.memory_budget = "80%";
    config.save = save_;
    train_tiny(config, 1);
  }
  TempDir dir_;
  std::string data_ = dir_.write("text.txt", tiny_text()), save_ = dir_ / "save";
};

TEST_F(ResumedDefaults, TakeTheMinLrOfTheSave) {
  EXPECT_EQ(load({"--resume", save_}).optimizer.min_lr, 5e-3);
  const std::string file = dir_.write("a.toml", "[optimizer]\nlr = 1e-2\n");
  EXPECT_EQ(load({file, "--resume", save_}).optimizer.min_lr, 5e-3) << "a file that does not name it";
}

TEST_F(ResumedDefaults, TakeTheBudgetOfTheSaveWhereTheyAreCompiled) {
  EXPECT_EQ(load({"--resume", save_}).plan.memory_budget.text(), "80%");
  EXPECT_EQ(load({"--resume", save_, "--memory-budget", "90%"}).plan.memory_budget.text(), "90%");
  const TrainConfig eager = load({"--resume", save_, "--compile", "false"});
  EXPECT_FALSE(eager.plan.compiled);
  EXPECT_FALSE(eager.plan.memory_budget.is_set());
  expect_error([&] { load({"--resume", save_, "--compile", "false", "--memory-budget", "90%"}); },
               {"memory_budget = 90% is of captured steps"});
}

TEST_F(ResumedDefaults, OfAllStepsSayThatNothingIsLeft) {
  const ProgramEnd end = sherd_here({"train", "--resume", save_, "--threads", "1"});
  EXPECT_EQ(end.status, kDone);
  EXPECT_EQ(end.out, "") << "no report of steps that were not made";
  EXPECT_NE(end.err.find(save_ + " has made all of its 2 steps; pass a larger --steps"), std::string::npos) << end.err;
}

TEST_F(ResumedDefaults, SaveWhereTheSavesLie) {
  EXPECT_EQ(load({"--resume", save_}).save, save_);
  EXPECT_EQ(load({"--resume", save_ + "/step-000002/"}).save, save_);
  EXPECT_EQ(load({"--resume", save_, "--save", dir_ / "other"}).save, dir_ / "other");
  const std::string moved = dir_ / "moved";
  std::filesystem::rename(save_, moved);
  EXPECT_EQ(load({"--resume", moved}).save, moved);
  EXPECT_EQ(load({"--resume", moved + "/step-000002"}).save, moved);
  const ProgramEnd end = sherd_here({"train", "--resume", moved, "--steps", "3", "--threads", "1"});
  EXPECT_EQ(end.status, kDone) << end.err;
  EXPECT_NE(end.err.find("saves go to " + moved), std::string::npos) << end.err;
  EXPECT_TRUE(std::filesystem::exists(moved + "/step-000003"));
  EXPECT_FALSE(std::filesystem::exists(save_));
}

TEST_F(ResumedDefaults, OfDataThatIsNotThereSayWhoNamesIt) {
  std::filesystem::rename(data_, dir_ / "elsewhere.txt");
  expect_error([&] { load({"--resume", save_}); }, {"resume from " + save_, data_, "of the save", "--data PATH"});
  EXPECT_EQ(load({"--resume", save_, "--data", dir_ / "elsewhere.txt"}).data, dir_ / "elsewhere.txt");
}

// ---- no config file ----

TEST(Defaults, AConfigFileMayBeLeftOutWhereFlagsSayWhatToTrainOn) {
  const TempDir dir;
  const TrainConfig config = load({"--data", "input.txt", "--model.layers", "2"});
  EXPECT_EQ(config.data, "input.txt");
  EXPECT_EQ(config.model.layers, 2);
  EXPECT_EQ(config.model.width, TrainConfig().model.width);
  EXPECT_EQ(config.optimizer.decay_steps, TrainConfig().steps);
  const auto refused = [](const Args& args, std::initializer_list<std::string_view> parts) {
    expect_error([&] { load(args); }, parts);
  };
  refused({}, {"nothing to train on", "--data PATH", "--init-from DIR", "--resume DIR"});
  refused({"--steps", "3"}, {"nothing to train on"});
  refused({"--init-from", "somewhere"}, {"--init-from somewhere", "--data PATH"});
  refused({"--init-from", dir.path(), "--data", "x"}, {dir.path(), "manifest.json"});
}

TEST(Defaults, TrainWithDataAloneTrains) {
  const TempDir dir;
  const std::string text = dir.write("text.txt", tiny_text()), metrics = dir / "m.jsonl";
  const ProgramEnd end = sherd_here({"train", "--data", text, "--steps", "2", "--model.layers", "1", "--threads", "1",
                                     "--eval-batches", "1", "--metrics", metrics});
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_NE(dir.read("m.jsonl").find("\"step\":2"), std::string::npos);
}

// ---- counts and bytes ----

TEST(Defaults, BytesTakeUnitsInFlagsAndFiles) {
  const auto limit_of = [](const Args& args) {
    Args all{"--data", "x"};
    all.insert(all.end(), args.begin(), args.end());
    return load(all).memory_limit;
  };
  EXPECT_EQ(limit_of({"--memory-limit", "8GB"}), 8'000'000'000);
  EXPECT_EQ(limit_of({"--memory-limit=1.5Gi"}), 3 * (std::int64_t{1} << 29));
  EXPECT_EQ(limit_of({"--memory-limit", "123"}), 123);
  EXPECT_EQ(load({"--data", "x", "--offload", "optimizer", "--offload-keep", "64MiB"}).plan.offload_keep, 64 << 20);
  const TempDir dir;
  const std::pair<const char*, std::int64_t> texts[] = {
      {"\"8GB\"", 8'000'000'000}, {"8e9", 8'000'000'000}, {"512", 512}, {"\"512\"", 512}, {"\"2KiB\"", 2048}};
  for (const auto& [text, bytes] : texts)
    EXPECT_EQ(load({dir.write("a.toml", fmt::format("memory_limit = {}\n", text))}).memory_limit, bytes) << text;
  for (const char* text : {"8.5", "\"8 GB\"", "true", "[8]"})
    expect_error([&] { load({dir.write("a.toml", fmt::format("memory_limit = {}\n", text))}); },
                 {"a.toml:1", "memory_limit", "a whole number of bytes", "8GiB"});
  EXPECT_EQ(load({"--data", "x", "--link", "10GB,20e-6"}).link, "10GB,20e-6");
  EXPECT_NE(train_help().find("--memory-limit BYTES"), std::string::npos);
  EXPECT_NE(train_help().find("Ki, Mi, Gi"), std::string::npos);
}

TEST(Defaults, CountsTakeExponentsInFlagsAndFiles) {
  const TempDir dir;
  EXPECT_EQ(load({"--data", "x", "--steps", "1e3"}).steps, 1000);
  EXPECT_EQ(load({"--data", "x", "--steps=2.5e3", "--batch", "1e2"}).batch, 100);
  EXPECT_EQ(load({dir.write("a.toml", "steps = 2e3\n")}).steps, 2000);
  for (const char* text : {"1e-3", "1.5", "1K", "1e99"})
    expect_error([&] { load({"--data", "x", "--steps", text}); }, {"--steps", "an integer", text});
  for (const char* text : {"1.5", "1e99", "inf", "nan", "\"1e3\""})
    expect_error([&] { load({dir.write("a.toml", fmt::format("steps = {}\n", text))}); },
                 {"a.toml:1", "steps", "an integer"});
}

// ---- mistyped names ----

struct Hint {
  const char *word, *name;  ///< no name: none is like it
};

std::optional<std::string> flag_for(const char* word) {
  TrainConfig config;
  const std::vector<std::string> keys = bind(config).keys();
  return nearest(word, keys);
}

TEST(Hints, FlagsAreLikeTheWord) {
  const Hint hints[] = {
      // The last part is the word.
      {"lr", "optimizer.lr"},
      {"layers", "model.layers"},
      {"dropout", "model.dropout"},
      {"train.lr", "optimizer.lr"},
      {"optim.weight_decay", "optimizer.weight_decay"},
      // At most a third of the word away.
      {"bacth", "batch"},
      {"stpes", "steps"},
      {"model.layer", "model.layers"},
      {"layer", "model.layers"},
      {"modle.width", "model.width"},
      {"save_evry", "save_every"},
      {"memory_limits", "memory_limit"},
      // The word but for a suffix, or the other way round.
      {"batch_size", "batch"},
      {"warmup_steps", "optimizer.warmup"},
      {"data_dir", "data"},
      {"optimizer", "optimizer.lr"},
      {"init", "init_from"},
      // None.
      {"wandb", nullptr},
      {"tokenizer", nullptr},
      {"epochs", nullptr},
      {"gpus", nullptr},
      {"learning_rate", nullptr},
      {"lora", nullptr},
      {"x", nullptr},
      {"", nullptr},
  };
  for (const Hint& hint : hints)
    EXPECT_EQ(flag_for(hint.word), hint.name ? std::optional<std::string>(hint.name) : std::nullopt) << hint.word;
  EXPECT_EQ(flag_for(std::string(100'000, 's').c_str()), std::nullopt);
}

TEST(Hints, FlagsKeysAndCommandsSayThemAlike) {
  EXPECT_EQ(sherd_here({"train", "--lr", "1"}).err, "sherd: unknown flag --lr; did you mean --optimizer.lr?\n");
  EXPECT_EQ(sherd_here({"train", "--batch-size=1"}).err, "sherd: unknown flag --batch-size; did you mean --batch?\n");
  EXPECT_EQ(sherd_here({"train", "--wandb"}).err, "sherd: unknown flag --wandb; --help lists all of them\n");
  EXPECT_EQ(sherd_here({"info", "--wandb"}).err, "sherd: unknown flag --wandb; there are none here\n");
  EXPECT_EQ(sherd_here({"evla"}).err, "sherd: unknown command \"evla\" (did you mean eval?); `sherd help` lists all\n");
  EXPECT_EQ(sherd_here({"generate"}).err, "sherd: unknown command \"generate\"; `sherd help` lists all\n");
}

TEST(Hints, OfEqualNamesTheFirstAndOfSameLastPartsTheNearest) {
  const std::vector<std::string> names{"blocks.0.attn.weight", "blocks.10.attn.weight", "blocks.0.mlp.weight"};
  EXPECT_EQ(nearest("bloks.0.mlp.weight", names), "blocks.0.mlp.weight");
  EXPECT_EQ(nearest("weight", names), "blocks.0.mlp.weight") << "the shortest";
  EXPECT_EQ(did_you_mean("blocks.0.attn.weigth", names), " (did you mean blocks.0.attn.weight?)");
  EXPECT_EQ(did_you_mean("head.bias", names), "");
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("steps", "setps"), 1u);  // neighbours swapped
  EXPECT_EQ(edit_distance("same", "same"), 0u);
}

// ---- help ----

TEST(Help, OfACommandIsTheCommandsOwn) {
  for (const char* command : {"run", "train", "sample", "eval", "export", "ckpt", "info", "walk", "bench"}) {
    const ProgramEnd help = sherd_here({"help", command}), flag = sherd_here({command, "--help"});
    EXPECT_EQ(help.status, 0) << help.err;
    EXPECT_EQ(help.out, flag.out) << command;
    EXPECT_NE(help.out.find("sherd " + std::string(command)), std::string::npos) << help.out;
    EXPECT_EQ(help.err, "");
  }
  EXPECT_EQ(sherd_here({"help"}).out, sherd_here({"--help"}).out);
}

}  // namespace
}  // namespace sherd::testing
