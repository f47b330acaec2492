// Flags, TOML files and the training config. Oracles: values written into the files by hand; nanoGPT's published
// recipe.
#include "tools/train/config.h"

#include <array>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/source_path.h"
#include "tests/support/temp_dir.h"
#include "tools/train/exit_status.h"
#include "tools/train/flags.h"
#include "tools/train/version.h"

namespace sherd {

using namespace train;

namespace {

using testing::expect_error;
using testing::TempDir;
using Args = std::vector<std::string_view>;

std::string difference(const TrainConfig& a, const TrainConfig& b) {
  return first_difference(std::array{0, 1}, std::array{facts_of(a), facts_of(b)});
}

struct Example {
  std::int64_t steps = 10;
  double rate = 0.5;
  bool loud = false;
  std::string name = "none";
  std::int64_t layers = 2;
};

class Flags : public ::testing::Test {
 protected:
  Flags() {
    table_.add("steps", &example_.steps, "steps to take");
    table_.add("rate", &example_.rate, "rate");
    table_.add("very_loud", &example_.loud, "noise", KeyRole::run);
    table_.add("name", &example_.name, "name");
    table_.add("model.layers", &example_.layers, "blocks");
  }
  CommandLine parse(const Args& args) { return parse_command_line(table_, args); }
  void apply(const Args& args) { apply_flags(table_, parse(args)); }

  Example example_;
  ConfigTable table_;
};

TEST_F(Flags, EverySpelling) {
  apply({"--steps", "20", "--rate=1e-3", "--very-loud", "--name", "-x", "--model.layers=-4"});
  EXPECT_EQ(example_.steps, 20);
  EXPECT_EQ(example_.rate, 1e-3);
  EXPECT_TRUE(example_.loud);
  EXPECT_EQ(example_.name, "-x");
  EXPECT_EQ(example_.layers, -4);
  apply({"--very_loud", "false", "--name=", "--rate", "3", "--steps=1", "--steps=2"});
  EXPECT_FALSE(example_.loud);
  EXPECT_EQ(example_.name, "");
  EXPECT_EQ(example_.rate, 3.0);
  EXPECT_EQ(example_.steps, 2);
}

TEST_F(Flags, WordsAndTheEndOfFlags) {
  const CommandLine line = parse({"a", "--very-loud", "b", "--", "--steps", "-h"});
  EXPECT_EQ(line.words, (std::vector<std::string>{"a", "b", "--steps", "-h"}));
  ASSERT_EQ(line.flags.size(), 1u);
  EXPECT_FALSE(line.help);
  EXPECT_TRUE(parse({"--help"}).help);
  EXPECT_EQ(example_.loud, false) << "parsing sets nothing";
}

TEST_F(Flags, MistakesAreNamed) {
  expect_error([&] { parse({"--setps", "3"}); }, {"--setps", "did you mean --steps"});
  expect_error([&] { parse({"--layers=3"}); }, {"--layers", "did you mean --model.layers"});
  expect_error([&] { parse({"--very-lod"}); }, {"did you mean --very-loud"});
  expect_error([&] { parse({"-steps", "3"}); }, {"-steps", "did you mean --steps"});
  expect_error([&] { parse({"--steps"}); }, {"--steps needs a value"});
  expect_error([&] { parse({"--steps", "--rate"}); }, {"--steps needs a value"});
  expect_error([&] { apply({"--steps", "four"}); }, {"--steps", "an integer", "\"four\""});
  expect_error([&] { apply({"--steps", "4x"}); }, {"\"4x\""});
  expect_error([&] { apply({"--steps", "1.5"}); }, {"\"1.5\""});
  expect_error([&] { apply({"--steps="}); }, {"an integer", "\"\""});
  expect_error([&] { apply({"--steps=9223372036854775808"}); }, {"9223372036854775808"});
  expect_error([&] { apply({"--rate", "fast"}); }, {"rate", "a number", "\"fast\""});
  expect_error([&] { apply({"--very-loud=yes"}); }, {"very_loud", "true or false", "\"yes\""});
  expect_error([&] { apply({"--name", "\xFF"}); }, {"name", "UTF-8"});
}

TEST_F(Flags, TomlKeysAreFlags) {
  load_toml_text(table_, "steps = 7\nrate = 2\nvery_loud = true\nname = \"x\\ny\"\n[model]\nlayers = 0x10\n", "a.toml");
  EXPECT_EQ(example_.steps, 7);
  EXPECT_EQ(example_.rate, 2.0) << "an integer serves as a number";
  EXPECT_TRUE(example_.loud);
  EXPECT_EQ(example_.name, "x\ny");
  EXPECT_EQ(example_.layers, 16);
}

TEST_F(Flags, TomlMistakesNameFileLineAndKey) {
  const auto load = [&](std::string_view text) { load_toml_text(table_, text, "a.toml"); };
  expect_error([&] { load("steps = 7\n\n[model]\nlayer = 3\n"); },
               {"a.toml:4", "model.layer", "did you mean model.layers"});
  expect_error([&] { load("[modle]\nlayers = 3\n"); }, {"a.toml:2", "modle.layers", "did you mean model.layers"});
  expect_error([&] { load("[modle]\n"); }, {"a.toml:1", "modle"});
  EXPECT_NO_THROW(load("[model]\n"));
  expect_error([&] { load("\nsteps = \"four\"\n"); }, {"a.toml:2", "steps", "an integer", "\"four\""});
  expect_error([&] { load("steps = 1.5\n"); }, {"steps", "an integer", "1.5"});
  expect_error([&] { load("rate = true\n"); }, {"rate", "a number", "true"});
  expect_error([&] { load("steps = [1]\n"); }, {"steps", "an integer", "an array"});
  expect_error([&] { load("[steps]\na = 1\n"); }, {"steps", "an integer", "a table"});
  expect_error([&] { load("steps = 2024-01-01\n"); }, {"steps", "a date"});
  expect_error([&] { load("other = 2024-01-01\n"); }, {"other"});
  expect_error([&] { load("steps = 1\nsteps = 2\n"); }, {"a.toml:2"});
  expect_error([&] { load("steps = \n"); }, {"a.toml:1"});
}

TEST_F(Flags, HostileTomlIsRefused) {
  const auto load = [&](const std::string& text) { load_toml_text(table_, text, "a.toml"); };
  expect_error([&] { load(std::string(15'000, '[')); }, {"a.toml", "malformed"});
  std::string nested = "a";
  for (int i = 0; i < 8'000; ++i) nested += ".a";
  EXPECT_THROW(load(nested + " = 1"), Error);
  expect_error([&] { load(std::string(20'000, ' ')); }, {"20000"});
}

TEST_F(Flags, FilesThatCannotBeRead) {
  const TempDir dir;
  expect_error([&] { load_toml_file(table_, dir / "absent.toml"); }, {"absent.toml", "No such file"});
  expect_error([&] { load_toml_file(table_, dir.path()); }, {dir.path(), "directory"});
  expect_error([&] { load_toml_file(table_, dir.write("big.toml", std::string(100'000, ' '))); },
               {"big.toml", "large"});
  load_toml_file(table_, dir.write("good.toml", "steps = 3"));
  EXPECT_EQ(example_.steps, 3);
}

TEST_F(Flags, PrintedConfigReadsBackToTheSameBits) {
  example_ = {-5, 0.1 + 0.2, true, "tab\t \"quoted\" back\\slash \x7F \u00e9", 12};
  Example copy;
  ConfigTable second;
  second.add("steps", &copy.steps, "");
  second.add("rate", &copy.rate, "");
  second.add("very_loud", &copy.loud, "");
  second.add("name", &copy.name, "");
  second.add("model.layers", &copy.layers, "");
  load_toml_text(second, table_.to_toml(), "printed");
  EXPECT_EQ(copy.steps, example_.steps);
  EXPECT_EQ(copy.rate, example_.rate);
  EXPECT_EQ(copy.loud, example_.loud);
  EXPECT_EQ(copy.name, example_.name);
  EXPECT_EQ(copy.layers, example_.layers);
}

TEST_F(Flags, HelpShowsDefaultsNotPresentValues) {
  apply({"--steps", "99"});
  const std::string help = table_.help();
  for (const char* part :
       {"--steps INTEGER", "steps to take (default 10)", "--very-loud ", "--name TEXT", "--rate NUMBER"})
    EXPECT_NE(help.find(part), std::string::npos) << part << " is not in\n" << help;
}

TEST_F(Flags, ASwitchMayHaveANumber) {
  using Words = std::vector<std::string>;
  const nn::ReshardAfterForward four = 4;
  nn::ReshardAfterForward keep = true;
  ConfigTable table;
  table.add("keep_it", &keep, "what it keeps");
  const auto words_of = [&](const Args& args) {
    const CommandLine line = parse_command_line(table, args);
    apply_flags(table, line);
    return line.words;
  };
  EXPECT_EQ(words_of({"--keep-it", "false", "a"}), Words{"a"});
  EXPECT_TRUE(keep == nn::ReshardAfterForward(false));
  EXPECT_EQ(words_of({"--keep-it", "a"}), Words{"a"}) << "alone it means true";
  EXPECT_TRUE(keep == nn::ReshardAfterForward(true));
  EXPECT_EQ(words_of({"--keep-it", "4", "a"}), Words{"a"});
  EXPECT_TRUE(keep == four);
  EXPECT_EQ(table.to_toml(), "keep_it = 4\n");
  load_toml_text(table, "keep_it = false\n", "a.toml");
  EXPECT_EQ(table.to_toml(), "keep_it = false\n");
  load_toml_text(table, "keep_it = 4\n", "a.toml");
  EXPECT_TRUE(keep == four);
  expect_error([&] { words_of({"--keep-it=flase"}); },
               {"--keep-it: keep_it must be true, false or a number of ranks from 2", "\"flase\""});
  for (const char* value : {"1.5", "\"4\"", "[4]"})
    expect_error([&] { load_toml_text(table, fmt::format("keep_it = {}\n", value), "a.toml"); },
                 {"a.toml:1: keep_it must be true, false or a number of ranks from 2"});
  EXPECT_NE(table.help().find("--keep-it [false|N]"), std::string::npos) << table.help();
}

// ---- the training config ----

std::string config_path(const std::string& name) { return testing::source_path("tools/configs/" + name); }

TrainConfig load(const Args& args) {
  const auto config = load_train_config(args);
  return config ? *config : TrainConfig{};
}

TEST(TrainConfig, FlagBeatsFileBeatsDefault) {
  const TempDir dir;
  const std::string path = dir.write("c.toml", "steps = 50\nbatch = 6\n[model]\nlayers = 3\n");
  const TrainConfig c = load({path, "--model.layers", "5", "--save-every", "10", "--save", "out", "--compile"});
  EXPECT_EQ(c.model.layers, 5);
  EXPECT_EQ(c.steps, 50);
  EXPECT_EQ(c.batch, 6);
  EXPECT_EQ(c.save_every, 10);
  EXPECT_TRUE(c.plan.compiled);
  EXPECT_EQ(c.seed, TrainConfig{}.seed);
}

TEST(TrainConfig, EveryFlagOfTheContractExists) {
  TrainConfig config;
  const ConfigTable table = bind(config);
  const Args flags = {"--data",   "x",   "--seed",         "1",      "--steps",  "2",      "--threads",    "1",
                      "--batch",  "4",   "--metrics",      "m",      "--save",   "s",      "--save-every", "1",
                      "--resume", "r",   "--memory-limit", "1000",   "--group",  "shm",    "--deadline",   "3.5",
                      "--device", "cpu", "--compile",      "--link", "1e9,2e-5", "--mesh", "dp=1",         "c.toml"};
  const CommandLine line = parse_command_line(table, flags);
  EXPECT_EQ(line.words, std::vector<std::string>{"c.toml"});
}

TEST(TrainConfig, AMeshIsNamedAxesSlowestFirst) {
  const std::string path = config_path("shakespeare-char.toml");
  EXPECT_EQ(load({path, "--mesh", "dp=2,tp=2"}).plan.mesh, "dp=2,tp=2");
  EXPECT_TRUE(load({path, "--parallel.sequence", "--mesh=tp=2"}).plan.tensor_parallel.sequence_parallel);
  const auto refused = [&](std::string_view mesh, std::initializer_list<std::string_view> parts) {
    expect_error([&] { load({path, "--mesh", mesh}); }, parts);
  };
  refused("x", {"mesh = \"x\"", "\"x\" is no axis=size", "dp=2,tp=2"});
  refused("dp=2,tq=2", {"no axis \"tq\"", "replicate, dp, tp"});
  refused("dp=0", {"dp must have a size of at least 1", "\"0\""});
  refused("dp=2x", {"\"2x\""});
  refused("dp=99999999999999", {"\"99999999999999\""});
  refused("dp=2,", {"\"\" is no axis=size"});
  refused("dp=2,dp=2", {"names dp twice"});
  refused("dp=2,replicate=2", {"replicate comes right before dp"});
  refused("replicate=2,tp=2,dp=2", {"replicate comes right before dp"});
}

TEST(TrainConfig, ADeviceIsTheCpuOrAGpuByNumber) {
  const std::string path = config_path("quickstart.toml");
  EXPECT_EQ(parse_device("cpu"), Device::cpu());
  EXPECT_EQ(parse_device("cuda"), Device::cuda(0));
  EXPECT_EQ(parse_device("cuda:0"), Device::cuda(0));
  EXPECT_EQ(parse_device("cuda:13"), Device::cuda(13));
  EXPECT_EQ(load({path, "--device", "cuda:1"}).plan.device, Device::cuda(1));
  for (const char* text : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:256", "CUDA", "meta", ""})
    expect_error([&] { load({path, "--device", text}); }, {"device must be", "cuda:N", text});
}

TEST(TrainConfig, TheDeviceAndThePlanOfTheLearningRateAreNoPartOfTheRecipe) {
  TrainConfig cpu, gpu, longer, faster;
  gpu.plan.device = Device::cuda(1);
  longer.optimizer.decay_steps = 2000;
  faster.optimizer.lr = 2e-3;
  EXPECT_EQ(recipe_difference(cpu, "a", gpu, "b"), "");
  EXPECT_EQ(recipe_difference(cpu, "a", longer, "b"), "");
  EXPECT_NE(recipe_difference(cpu, "a", faster, "b"), "");
}

TEST(TrainConfig, KeysThatOnlyRoundOtherwiseAreNoRecipe) {
  const TrainConfig before;
  TrainConfig now = before;
  now.threads = 3;
  now.plan.units = "coarse";
  now.plan.recompute = "full";
  now.plan.compiled = true;
  EXPECT_FALSE(rounds_otherwise(before, now)) << "the same bits";
  using Plan = nn::TrainingPlan;
  for (const Plan& plan :
       {Plan{.device = Device::cuda(1)}, Plan{.mesh = "tp=2"}, Plan{.fully_shard = false}, Plan{.strategy = "no_shard"},
        Plan{.tensor_parallel = {.sequence_parallel = true}}, Plan{.tensor_parallel = {.loss_parallel = false}}}) {
    now.plan = plan;
    EXPECT_EQ(recipe_difference(before, "a", now, "b"), "");
    EXPECT_TRUE(rounds_otherwise(before, now)) << print(plan);
  }
}

TEST(TrainConfig, ALinkIsARateAndALatency) {
  const std::string path = config_path("quickstart.toml");
  EXPECT_EQ(load({path}).link, "");
  EXPECT_EQ(load({path, "--link", "dp=2e9,0;replicate=2e8,0"}).link, "dp=2e9,0;replicate=2e8,0");
  for (const std::string_view text :
       {"1e9", "1e9,", ",1", "0,1", "-1,0", "1e9,-1", "1e9,nan", "inf,0", "1e9,1,2", "fast", "dp=1e9", "dp=1e9,0;"})
    expect_error([&] { load({path, "--link", text}); }, {"link must be BYTES_PER_S,SECONDS", text});
}

TEST(TrainConfig, NumbersThatFollowFromOthers) {
  const TempDir dir;
  const std::string llama = dir.write("l.toml", "steps = 77\n[model]\nstyle = \"llama\"\nwidth = 256\nheads = 8\n");
  EXPECT_EQ(load({llama}).model.kv_heads, 8);
  EXPECT_EQ(load({llama}).model.hidden, 704);  // 8/3 x 256 = 682.7, up to a multiple of 32
  EXPECT_EQ(load({llama}).optimizer.decay_steps, 77);
  EXPECT_EQ(load({llama, "--model.style", "gpt2"}).model.hidden, 1024);
  EXPECT_EQ(load({llama, "--model.hidden", "5", "--model.kv-heads", "2"}).model.hidden, 5);
}

TEST(TrainConfig, RangesAreChecked) {
  const std::string path = config_path("quickstart.toml");
  const auto refused = [&](const Args& flags, std::initializer_list<std::string_view> parts) {
    Args args = {path};
    args.insert(args.end(), flags.begin(), flags.end());
    expect_error([&] { load(args); }, parts);
  };
  refused({"--model.width", "250"}, {"model.width = 250", "model.heads = 8"});
  refused({"--model.kv_heads", "3"}, {"model.heads = 8", "model.kv_heads = 3"});
  refused({"--model.heads", "0"}, {"model.heads", "at least 1", "got 0"});
  refused({"--model.width", "24"}, {"even"});
  refused({"--model.style", "gpt3"}, {"model.style", "gpt2, llama", "gpt3"});
  refused({"--model.style", "gpt2"}, {"kv_heads = 4", "heads = 8"});
  refused({"--model.bias"}, {"model.bias"});
  refused({"--model.dropout", "1"}, {"model.dropout", "got 1"});
  refused({"--model.dropout", "0.1", "--model.style", "llama"}, {"model.dropout = 0.1", "gpt2"});
  refused({"--model.gelu", "relu"}, {"model.gelu", "erf, tanh"});
  refused({"--model.layers", "0"}, {"model.layers", "got 0"});
  refused({"--model.sequence", "0"}, {"model.sequence"});
  refused({"--model.norm-eps", "nan"}, {"model.norm_eps", "nan"});
  refused({"--vocabulary", "words"}, {"vocabulary", "bytes, chars"});
  refused({"--steps", "0"}, {"steps", "at least 1"});
  const std::string huge = "4611686018427387904";
  for (const char* key :
       {"steps", "batch", "accumulate", "eval_every", "eval_batches", "threads", "memory_limit", "save_every", "keep",
        "model.layers", "model.heads", "model.kv_heads", "model.width", "model.hidden", "model.sequence",
        "model.positions", "model.vocabulary", "optimizer.warmup", "optimizer.decay_steps"}) {
    refused({fmt::format("--{}={}", key, huge)}, {key, "must be at most ", huge});
    refused({fmt::format("--{}=-1", key)}, {key, "must be at least ", "got -1"});
  }
  refused({"--threads", "1073741824"}, {"threads must be at most 1024, got 1073741824"});
  refused({"--batch", "100000000"}, {"batch = 100000000", "model.sequence = ", "tokens in a step"});
  refused({"--batch", "7", "--accumulate", "2"}, {"batch = 7", "accumulate = 2"});
  refused({"--save-every", "5"}, {"save_every = 5", "--save"});
  refused({"--deadline", "0"}, {"deadline", "got 0"});
  refused({"--deadline", "nan"}, {"deadline", "got nan"});
  refused({"--frozen-after", "0"}, {"frozen_after", "got 0"});
  refused({"--param-dtype", "i32"}, {"param_dtype", "f32, bf16, f16", "i32"});
  refused({"--reduce-dtype", "half"}, {"reduce_dtype", "half"});
  refused({"--loss-scale", "static"}, {"loss_scale", "auto, dynamic, none", "\"static\""});
  for (const char* scale : {"0", "-1", "inf", "nan", "1e39", "1e-38", "1e-300", ""})
    refused({"--loss-scale", scale}, {"loss_scale", "a positive number"});
  refused({"--param-dtype", "bf16", "--fully-shard", "false"}, {"param_dtype = bf16", "fully_shard"});
  refused({"--group", "mpi"}, {"group", "auto, shm, thread, nccl, staged", "\"mpi\""});
  refused({"--optimizer.lr", "nan"}, {"optimizer.lr"});
  for (const char* key :
       {"optimizer.lr", "optimizer.eps", "optimizer.weight_decay", "model.rope_theta", "model.init_std"})
    for (const char* value : {"-1", "1e-50", "1e-38", "1e+39", "1e+300", "inf", "nan"})
      refused({fmt::format("--{}={}", key, value)}, {key, "from 1.1754944e-38 to 3.4028235e+38", "got ", value});
  for (const char* value : {"-1", "1e-50", "nan"}) {
    refused({"--optimizer.clip", value}, {"optimizer.clip", "1.1754944e-38", "got "});
    refused({"--model.norm-eps", value}, {"model.norm_eps", "1.1754944e-38", "got "});
  }
  refused({"--optimizer.min-lr", "1"}, {"optimizer.min_lr", "0.002", "got 1"});
  refused({"--optimizer.beta2", "1"}, {"optimizer.beta2"});
  refused({"--memory-limit", "-1"}, {"memory_limit"});
  refused({"other.toml"}, {"one config file", "other.toml"});
  expect_error([] { load({}); }, {"nothing to train on", "--data PATH", "--resume DIR"});
}

// What a file holds is as wrong as a flag; that there is none may be over by the next start.
TEST(TrainConfig, MistakesOfFlagsAndFilesAreThoseOfUsage) {
  const TempDir dir;
  const std::string good = dir.write("good.toml", "steps = 5\n"), bad = dir.write("bad.toml", "steps = 0\n");
  const auto status = [](const Args& args) -> int {
    try {
      load_train_config(args);
    } catch (const ExitError& error) { return error.status(); } catch (const Error&) {
      return kFailed;
    }
    return kDone;
  };
  EXPECT_EQ(status({good, "--steps", "6"}), kDone);
  for (const Args& args : {Args{}, Args{good, "more"}, Args{good, "--stesp", "5"}, Args{good, "--steps", "x"},
                           Args{good, "--steps", "0"}, Args{good, "--mesh", "dp=0"}})
    EXPECT_EQ(status(args), kUsage) << fmt::format("{}", fmt::join(args, " "));
  EXPECT_EQ(status({bad}), kUsage);
  EXPECT_EQ(status({bad, "--seed", "1"}), kUsage);
  EXPECT_EQ(status({bad, "--steps", "3"}), kDone) << "a flag mends the file";
  EXPECT_EQ(status({dir / "none.toml"}), kFailed);
}

TEST(TrainConfig, TheLossIsScaledForF16OrWhenAsked) {
  const auto scaling = [](const char* param, const char* reduce, const char* scale) {
    const nn::TrainingPlan plan{.param_dtype = dtype_from_name(param), .reduce_dtype = dtype_from_name(reduce)};
    return nn::LossScale(scale).options(nn::has_f16(plan));
  };
  EXPECT_EQ(TrainConfig().plan.loss_scale, "auto");
  EXPECT_FALSE(scaling("f32", "f32", "auto"));
  EXPECT_FALSE(scaling("bf16", "f32", "auto"));
  EXPECT_FALSE(scaling("f16", "f16", "none"));
  for (const auto& options :
       {scaling("f16", "f32", "auto"), scaling("f32", "f16", "auto"), scaling("f32", "f32", "dynamic")}) {
    ASSERT_TRUE(options);
    EXPECT_EQ(options->init_scale, 65536);
    EXPECT_EQ(options->growth_interval, 2000);
    EXPECT_EQ(options->min_scale, 1);
  }
  const auto fixed = scaling("bf16", "f32", "1024.5");
  ASSERT_TRUE(fixed);
  EXPECT_EQ(fixed->init_scale, 1024.5);
  EXPECT_EQ(fixed->growth_factor, 1);
  EXPECT_EQ(fixed->backoff_factor, 1);
}

TEST(TrainConfig, ReshardingAfterForwardIsASwitchOrANumberOfRanks) {
  const std::string path = config_path("quickstart.toml");
  const nn::ReshardAfterForward two = 2;
  EXPECT_TRUE(load({path}).plan.reshard_after_forward == nn::ReshardAfterForward(true));
  EXPECT_TRUE(load({"--reshard-after-forward", path}).plan.reshard_after_forward == nn::ReshardAfterForward(true));
  EXPECT_TRUE(load({path, "--reshard-after-forward", "false"}).plan.reshard_after_forward ==
              nn::ReshardAfterForward(false));
  const TrainConfig config = load({path, "--reshard-after-forward", "2"});
  EXPECT_TRUE(config.plan.reshard_after_forward == two);
  EXPECT_EQ(difference(config, train_config_from_toml(to_toml(config), "manifest")), "");
  EXPECT_EQ(difference(load({path}), config), "reshard_after_forward is true on rank 0; 2 on rank 1");
  const TrainConfig old = train_config_from_toml("reshard_after_forward = false\n", "manifest");
  EXPECT_TRUE(old.plan.reshard_after_forward == nn::ReshardAfterForward(false))
      << "as checkpoints have it since it was a switch";

  const auto refused = [&](const Args& flags, std::initializer_list<std::string_view> parts) {
    Args args = {path, "--reshard-after-forward"};
    args.insert(args.end(), flags.begin(), flags.end());
    expect_error([&] { load(args); }, parts);
  };
  for (const char* ranks : {"1", "0", "-2", "3000000000"})
    refused({ranks}, {"reshard_after_forward must be true, false or a number of ranks from 2", ranks});
  for (const char* strategy : {"shard_grad_op", "shard_optimizer", "no_shard"})
    refused({"2", "--strategy", strategy}, {"reshard_after_forward = 2 needs a strategy", strategy});
  refused({"2", "--gather", "int8"}, {"gather = int8 with reshard_after_forward = 2"});
  refused({"2", "--fully-shard", "false"}, {"reshard_after_forward = 2 is a setting of fully_shard"});
}

TEST(TrainConfig, HelpIsAskedForNotAnError) {
  EXPECT_FALSE(load_train_config(Args{"--help"}).has_value());
  EXPECT_NE(train_help().find("--model.layers INTEGER"), std::string::npos);
}

TEST(TrainConfig, TextForCheckpointsReadsBack) {
  const TrainConfig saved = load({config_path("shakespeare-char.toml"), "--optimizer.lr", "0.30000000000000004"});
  const TrainConfig read = train_config_from_toml(to_toml(saved), "manifest");
  EXPECT_EQ(difference(saved, read), "");
  EXPECT_EQ(read.optimizer.lr, 0.30000000000000004);
  expect_error([] { train_config_from_toml("[model]\nlayer = 1", "DIR/manifest.json"); }, {"DIR/manifest.json:2"});
}

TEST(TrainConfig, DifferencesAreNamed) {
  const TrainConfig a = load({config_path("quickstart.toml")});
  TrainConfig b = a;
  b.metrics = "other.jsonl";
  b.threads = 3;
  b.steps += 1;
  EXPECT_EQ(recipe_difference(a, "the checkpoint", b, "this run"), "") << "where and how fast, not what";
  EXPECT_EQ(difference(a, b), "steps is 80 on rank 0; 81 on rank 1");
  b.model.layers = 9;
  EXPECT_EQ(recipe_difference(a, "the checkpoint", b, "this run"),
            "the checkpoint has model.layers = 6, this run has 9");
}

TEST(TrainConfig, ShakespeareIsTheRecipeOfNanoGpt) {
  const TrainConfig c = load({config_path("shakespeare-char.toml")});
  // config/train_shakespeare_char.py, the README's flags for a CPU, and the defaults of train.py and model.py.
  EXPECT_EQ(c.vocabulary, "chars");
  EXPECT_EQ(c.steps, 2000);
  EXPECT_EQ(c.batch, 12);
  EXPECT_EQ(c.plan.micro_batches, 1);
  EXPECT_EQ(c.eval_batches, 0);
  EXPECT_EQ(c.model.style, "gpt2");
  EXPECT_EQ(c.model.layers, 4);
  EXPECT_EQ(c.model.heads, 4);
  EXPECT_EQ(c.model.width, 128);
  EXPECT_EQ(c.model.hidden, 512);
  EXPECT_EQ(c.model.sequence, 64);
  EXPECT_EQ(c.model.dropout, 0.0);
  EXPECT_FALSE(c.model.bias);
  EXPECT_EQ(c.model.gelu, "erf");
  EXPECT_TRUE(c.model.tied_head);
  EXPECT_EQ(c.model.norm_eps, 1e-5);
  EXPECT_EQ(c.model.init_std, 0.02);
  EXPECT_TRUE(c.model.scaled_residual_init);
  EXPECT_EQ(c.optimizer.lr, 1e-3);
  EXPECT_EQ(c.optimizer.min_lr, 1e-4);
  EXPECT_EQ(c.optimizer.warmup, 100);
  EXPECT_EQ(c.optimizer.decay_steps, 2000);
  EXPECT_EQ(c.optimizer.beta1, 0.9);
  EXPECT_EQ(c.optimizer.beta2, 0.99);
  EXPECT_EQ(c.optimizer.eps, 1e-8);
  EXPECT_EQ(c.optimizer.weight_decay, 0.1);
  EXPECT_TRUE(c.optimizer.decay_matrices_only);
  EXPECT_EQ(c.optimizer.clip, 1.0);
}

TEST(TrainConfig, QuickstartHasAboutFiveMillionParameters) {
  const TrainConfig::Model m = load({config_path("quickstart.toml")}).model;
  EXPECT_EQ(m.style, "llama");
  const std::int64_t kv = m.width / m.heads * m.kv_heads;
  const std::int64_t block = 2 * m.width * m.width + 2 * m.width * kv + 3 * m.width * m.hidden + 2 * m.width;
  const std::int64_t total = m.layers * block + 2 * 256 * m.width + m.width;
  EXPECT_GT(total, 4'500'000);
  EXPECT_LT(total, 5'500'000);
}

TEST(Command, VersionIsThatOfTheBuild) {
  std::ostringstream text;
  text << std::ifstream(testing::source_path("CMakeLists.txt")).rdbuf();
  EXPECT_NE(text.str().find(fmt::format("project(sherd VERSION {} ", kVersion)), std::string::npos);
}

}  // namespace
}  // namespace sherd
