// What a user can get wrong before the first step: the error is clear, it is every rank's, and nothing hangs.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "nn/checkpoint/format/manifest.h"
#include "runtime/comm/group/host_group.h"
#include "tests/support/expect_error.h"
#include "tests/tools/program_test.h"
#include "tools/train/weights.h"

namespace sherd::testing {

using namespace train;

namespace {

using namespace ckpt;

namespace fs = std::filesystem;
using Group = std::shared_ptr<ProcessGroup>;

class BadInput : public ProgramTest {
 protected:
  TrainConfig config_ = tiny_config(data_);

  /// Every one of three ranks must get an Error that holds `parts`.
  static void refused(const std::function<TrainConfig(int rank)>& config_of,
                      std::initializer_list<std::string_view> parts) {
    run_ranks(3, [&](const Group& group) {
      expect_error([&] { Trainer trainer(config_of(group->rank()), group); }, parts);
      group->host().barrier();  // nobody is left in another collective
    });
  }
  static void refused(const TrainConfig& config, std::initializer_list<std::string_view> parts) {
    refused([&](int) { return config; }, parts);
  }

  /// A run that failed as it should: its status, its words, its time.
  static void expect_failed(const ProgramEnd& end, std::initializer_list<std::string_view> parts) {
    EXPECT_FALSE(end.timed_out) << end.err;
    EXPECT_NE(end.status, 0);
    EXPECT_LT(end.status, 128) << "killed by a signal: " << end.err;
    expect_within(end.err, parts);
  }
};

// ---- configs, as processes ----

TEST_F(BadInput, UnknownKeysNameTheNearest) {
  dir_.write("tiny.toml", "steps = 3\n[model]\nlayer = 2\n");
  for (int ranks : {1, 2}) expect_failed(train(ranks, {}), {"tiny.toml:3", "layer", "model.layers"});
  expect_failed(train(1, {"--model.layer", "2"}), {"--model.layer", "model.layers"});
}

TEST_F(BadInput, ValuesOfTheWrongTypeNameTheKey) {
  dir_.write("tiny.toml", "steps = \"ten\"\n");
  for (int ranks : {1, 2}) expect_failed(train(ranks, {}), {"tiny.toml:1", "steps", "ten"});
  dir_.write("tiny.toml", "steps = \n");
  expect_failed(train(1, {}), {"tiny.toml:1"});
  dir_.write("tiny.toml", "steps = 10\n");
  expect_failed(train(1, {"--steps", "ten"}), {"--steps", "ten"});
}

TEST_F(BadInput, BudgetsThatNoStepHoldsAreRefusedBeforeTheFirst) {
  for (const char* budget : {"0", "200%", "nan%", "-1%", "many"})
    expect_failed(train(1, {"--compile", "--memory-budget", budget}), {"a memory budget of", budget});
  expect_failed(train(1, {"--memory-budget", "75%"}), {"memory_budget = 75%", "set compile"});
  for (const int ranks : {1, 2, 3}) {
    const ProgramEnd end = train(ranks, {"--compile", "--memory-budget", "1"});
    expect_failed(end, {"a budget of 1 B is below the least that the step can hold", " bytes)", "held", "at"});
    EXPECT_EQ(end.status, kUsage);
  }
}

TEST_F(BadInput, MissingFilesAreNamed) {
  fs::remove(config_file_);
  for (int ranks : {1, 2}) expect_failed(train(ranks, {}), {config_file_, "No such file"});
}

// What of CUDA may be missing on a host; what a GPU may lack is asked of the emulated one in tests/cuda/training.
TEST_F(BadInput, AMissingCudaLibraryIsNamed) {
  const std::string nothing = dir_ / "libnothing.so", text = dir_.write("libtext.so", "not a library");
  for (const std::string& file : {nothing, text}) {
    const Words environment{"SHERD_CUDA_LIB=" + file};
    expect_failed(sherd({"train", config_file_, "--device", "cuda"}, environment),
                  {"device cuda:0", "no CUDA backend", file, "sherd info", "cpu"});
    const ProgramEnd info = sherd({"info"}, environment);
    EXPECT_EQ(info.status, 0) << info.err;
    expect_within(info.out, {"devices          cpu, meta\n", "cuda             not available", file});
  }
}

TEST_F(BadInput, ACudaLibraryFromOtherSourcesIsRefused) {
  const ProgramEnd info = sherd({"info"}, {std::string("SHERD_CUDA_LIB=") + SHERD_OTHER_BACKEND});
  EXPECT_EQ(info.status, 0) << info.err;
  expect_within(info.out, {"cuda             not available", "was built from other sources", "0123456789abcdef",
                           "build both together"});
}

TEST_F(BadInput, DevicesThatAreNoneAreRefused) {
  expect_failed(train(1, {"--device", "gpu"}), {"device must be cpu, cuda", "\"gpu\""});
  expect_failed(sherd({"eval", dir_.path(), "--tokens", "x", "--device", "gpu"}), {"device must be cpu, cuda"});
  expect_failed(sherd({"sample", dir_.path(), "--device", "gpu"}), {"device must be cpu, cuda"});
}

TEST_F(BadInput, UnknownCommandsNameTheNearest) {
  expect_failed(sherd({"trian"}), {"\"trian\"", "train"});
  expect_failed(sherd({"train"}), {"nothing to train on", "--data PATH"});
}

// Scripts tell a slip of the pen, which no retry mends, from what may have gone well.
TEST_F(BadInput, AWrongCommandLineEndsWithAStatusOfItsOwn) {
  const auto refused = [](const ProgramEnd& end, std::initializer_list<std::string_view> parts) {
    EXPECT_FALSE(end.timed_out);
    EXPECT_EQ(end.status, kUsage) << end.err;
    expect_within(end.err, parts);
  };
  refused(sherd({}), {"sherd train [CONFIG.toml]"});
  refused(sherd({"trian"}), {"\"trian\"", "train"});
  for (const char* command : {"run", "train", "sample", "eval", "export", "info", "bench"})
    refused(sherd({command, "--nonsense"}), {"--nonsense"});
  refused(train(2, {"--nonsense"}), {"--nonsense"});
  refused(train(1, {"--steps"}), {"--steps needs a value"});
  refused(train(1, {"--steps", "ten"}), {"--steps", "an integer", "\"ten\""});
  refused(train(1, {"--steps", "0"}), {"steps must be at least 1"});
  refused(train(1, {"--strategy", "fullshard"}), {"\"fullshard\"", "full_shard"});
  refused(sherd({"train"}), {"--data PATH"});
  refused(sherd({"run", "-n", "two", "--", "true"}), {"-n 'two'"});
  refused(sherd({"run", "-n", "2"}), {"command is missing"});
  refused(sherd({"sample", dir_.path(), "--device", "gpu"}), {"\"gpu\""});
  refused(sherd({"eval", dir_.path(), "--tokens", "x", "--device", "gpu"}), {"\"gpu\""});
  refused(sherd({"export", dir_.path(), dir_ / "out", "--dtype", "f8"}), {"f8"});
  refused(sherd({"bench", "steps.", "--smoke"}), {"\"steps.\""});
}

TEST_F(BadInput, OtherErrorsDoNotPassForAWrongCommandLine) {
  EXPECT_EQ(train(1, {"--data", dir_ / "nothing.txt"}).status, kFailed);
  EXPECT_EQ(sherd({"sample", dir_ / "nothing"}).status, kFailed);
  EXPECT_EQ(sherd({"train", dir_ / "nothing.toml"}).status, kFailed);
}

// ---- what only the trainer can see, on every rank ----

TEST_F(BadInput, MissingOrEmptyDataIsNamedOnEveryRank) {
  config_.data = dir_ / "nothing.txt";
  refused(config_, {"nothing.txt"});
  config_.data = dir_.write("empty.txt", "");
  refused(config_, {"empty.txt"});
  fs::create_directories(dir_ / "folder");
  config_.data = dir_ / "folder";
  refused(config_, {"folder"});
  config_.data = "";
  refused(config_, {"--data"});
  expect_failed(train(2, {"--data", dir_ / "nothing.txt"}), {"nothing.txt", "No such file"});
  expect_failed(train(2, {"--data", dir_ / "empty.txt"}), {"empty.txt"});
}

TEST_F(BadInput, ASequenceLongerThanTheDataIsRefusedOnEveryRank) {
  config_.model.sequence = 1000;  // fits the 4322 training characters, not the 481 of the validation part
  refused(config_, {"1000", "text.txt", "481"});
  config_.model.sequence = 5000;
  refused(config_, {"5000", "text.txt"});
  expect_failed(train(2, {"--model.sequence", "5000"}), {"5000", "text.txt"});
}

TEST_F(BadInput, ABatchThatDoesNotDivideIsRefusedOnEveryRank) {
  config_.batch = 4;
  refused(config_, {"batch = 4", "3 ranks", "multiple of 3"});
  config_.batch = 12;
  config_.plan.micro_batches = 6;
  refused(config_, {"batch = 12", "3 ranks x 6 micro-batches", "multiple of 18"});
  expect_failed(train(2, {"--batch", "3"}), {"batch = 3", "2 ranks"});
}

TEST_F(BadInput, SeveralRanksWithoutShardingAreRefused) {
  config_.plan.fully_shard = false;
  refused(config_, {"fully_shard = false", "3 ranks"});
}

TEST_F(BadInput, RanksWithDifferentConfigsAreToldWhichKey) {
  refused(
      [&](int rank) {
        TrainConfig own = config_;
        if (rank == 2) own.seed = 99;
        return own;
      },
      {"different configs: seed is 7 on ranks 0, 1; 99 on rank 2"});
  refused(
      [&](int rank) {
        TrainConfig own = config_;
        own.steps += rank;  // no matter for the numbers, but the ranks would part ways
        return own;
      },
      {"different configs", "steps", "rank 1"});
  expect_failed(train_by_script(2, "exec \"$0\" train \"$1\" --seed $SHERD_RANK"),
                {"different configs", "seed", "rank 0", "rank 1"});
}

TEST_F(BadInput, RanksWithOtherDataAreTold) {
  refused(
      [&](int rank) {
        TrainConfig own = config_;
        own.data = dir_.write(fmt::format("rank{}/text.txt", rank), tiny_text() + (rank == 1 ? "!" : ""));
        return own;
      },
      {"rank 1"});
}

// ---- checkpoints ----

class BadCheckpoint : public BadInput {
 protected:
  void SetUp() override {
    config_.save = checkpoint();
    config_.steps = 2;
    train_tiny(config_, 3);
    config_.steps = 4;
    config_.save.clear();
    config_.resume = checkpoint();
  }
  std::string checkpoint() const { return dir_ / "checkpoint"; }
  std::string rank_file(int rank) const {
    return fmt::format("{}/step-000002/rank-{:05}.safetensors", checkpoint(), rank);
  }
};

TEST_F(BadCheckpoint, TheCheckpointItselfIsGood) { EXPECT_EQ(train_tiny(config_, 3).losses.size(), 2u); }

TEST_F(BadCheckpoint, TruncatedFilesAreNamedOnEveryRank) {
  for (int rank : {0, 1, 2}) {
    const auto size = fs::file_size(rank_file(rank));
    const std::string whole = dir_.read(fs::relative(rank_file(rank), dir_.path()).string());
    for (const std::uintmax_t left : {size - 1, size / 2, std::uintmax_t{5}, std::uintmax_t{0}}) {
      fs::resize_file(rank_file(rank), left);
      refused(config_, {fmt::format("rank-{:05}.safetensors", rank)});
    }
    std::ofstream(rank_file(rank), std::ios::binary) << whole;
  }
  fs::remove(rank_file(1));
  refused(config_, {"rank-00001.safetensors"});
}

TEST_F(BadCheckpoint, AFlippedBitIsNamedOnEveryRank) {
  std::fstream file(rank_file(2), std::ios::in | std::ios::out | std::ios::binary);
  const auto last = static_cast<std::streamoff>(fs::file_size(rank_file(2))) - 1;
  file.seekg(last);
  const int byte = file.get();
  file.seekp(last);
  file.put(static_cast<char>(byte ^ 0x10));
  file.close();
  refused(config_, {"rank-00002.safetensors", "checksum", "changed"});
  expect_failed(train(3, {"--resume", checkpoint()}), {"rank-00002.safetensors", "checksum"});
}

TEST_F(BadCheckpoint, ADamagedManifestIsNamedOnEveryRank) {
  const std::string text = dir_.read("checkpoint/step-000002/manifest.json");
  dir_.write("checkpoint/step-000002/manifest.json", text.substr(0, text.size() / 2));
  refused(config_, {"manifest.json"});
  std::string changed = text;
  changed.replace(changed.find("rank-00002"), 10, "rank-00003");
  dir_.write("checkpoint/step-000002/manifest.json", changed);
  refused(config_, {"manifest.json", "checksum"});
  fs::remove(checkpoint() + "/step-000002/manifest.json");
  refused(config_, {"manifest.json"});
}

TEST_F(BadCheckpoint, AnotherRecipeOrOtherDataIsRefusedOnEveryRank) {
  TrainConfig other = config_;
  other.model.width = 32;
  refused(other, {"resume from", "model.width = 16", "32", "leave it out of config and flags"});
  other = config_;
  other.seed = 8;
  refused(other, {"resume from", "seed = 7", "8"});
  other = config_;
  other.data = dir_.write("other.txt", tiny_text() + "ok");
  refused(other, {"resume from", "other.txt", "not what the checkpoint was trained on", "--data PATH", "--init-from"});
  other = config_;
  other.data = dir_.write("other.txt", tiny_text() + "Z");
  refused(other, {"other.txt", "Z"});
  other = config_;
  other.steps = 1;
  refused(other, {"2 steps", "1 in all"});
}

TEST_F(BadCheckpoint, DataOfTheSameSizeWithOtherContentIsRefusedOnEveryRank) {
  std::string edited = tiny_text();
  std::swap(edited[1000], edited[1001]);
  ASSERT_NE(edited, tiny_text());
  dir_.write("text.txt", edited);
  refused(config_,
          {"resume from", "text.txt", "not what the checkpoint was trained on", "the content is not", "--data PATH"});
  dir_.write("text.txt", tiny_text());
  EXPECT_EQ(train_tiny(config_, 3).losses.size(), 2u) << "a file of the same content, written anew";
}

TEST_F(BadCheckpoint, WhatAnEarlierProgramSavedOfTheDataIsEnough) {
  Manifest manifest = read_manifest(checkpoint());
  EXPECT_EQ(manifest.state.erase("data_content"), 1u);
  commit(checkpoint(), "step-000002", manifest);
  EXPECT_EQ(train_tiny(config_, 3).losses.size(), 2u);
}

TEST_F(BadCheckpoint, AModelThatTheTensorsDoNotShowIsNotBuilt) {
  // Signed as if it were good. Built, each would take minutes or more memory than there is.
  const Manifest good = read_manifest(checkpoint());
  const auto with = [&](std::initializer_list<std::pair<std::string, std::string>> changes) {
    Manifest manifest = good;
    for (const auto& [from, to] : changes) manifest.config.replace(manifest.config.find(from), from.size(), to);
    commit(checkpoint(), "step-000002", manifest);
  };
  with({{"layers = 2", "layers = 1000000000"}});
  expect_error([&] { Weights{checkpoint()}; }, {"model.layers", "at most", "1000000000"});
  with({{"layers = 2", "layers = 9000"}});
  expect_error([&] { Weights{checkpoint()}; }, {"has 9000 layers", "tensors only"});
  TrainConfig same = config_;
  same.model.layers = 9000;
  refused(same, {"has 9000 layers"});
  with({{"width = 16", "width = 1048576"}, {"hidden = 64", "hidden = 4194304"}});
  expect_error([&] { Weights{checkpoint()}; }, {"holds param ", "f32[", "not as f32["});
  same = config_;
  same.model.width = 1048576;
  same.model.hidden = 4194304;
  refused(same, {"holds param ", "not as f32["});
}

TEST_F(BadCheckpoint, AFullDiskFailsTheRunAndKeepsTheLastGoodOne) {
  const std::string resume = fmt::format(" --resume {0} --save {0} --steps 4", checkpoint());
  // Units of 512 bytes: less than a rank's file. Ranks are threads, because the limit counts shared memory too.
  expect_failed(train_by_script(3, "ulimit -f 8; exec \"$0\" train \"$1\" --group thread" + resume),
                {"rank-0000", "File too large"});
  EXPECT_EQ(read_manifest(checkpoint()).step, 2);
  const TinyRun after = train_tiny(config_, 3);
  EXPECT_EQ(after.losses.size(), 2u) << "the last good one resumes";
  const ProgramEnd retried = train_by_script(3, "exec \"$0\" train \"$1\"" + resume);
  EXPECT_EQ(retried.status, 0) << retried.err;
  EXPECT_EQ(read_manifest(checkpoint()).step, 4);
}

TEST_F(BadInput, AFolderThatCannotBeWrittenIsNamedBeforeTheFirstStep) {
  config_.save = dir_ / "text.txt/checkpoint";
  config_.steps = 1;
  run_ranks(3, [&](const Group& group) {
    expect_error([&] { Trainer trainer(config_, group); }, {"text.txt/checkpoint", "cannot make the folder"});
  });
  expect_failed(train(2, {"--steps", "1", "--save", config_.save}), {"text.txt/checkpoint"});
  expect_failed(train(2, {"--metrics", dir_ / "text.txt/metrics.jsonl"}), {"text.txt/metrics.jsonl"});
}

// ---- ranks that do not find each other ----

// A socket that listens on a free port and never answers.
struct Occupied {
  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port = 0;
  Occupied() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(socket, 8), 0);
    socklen_t length = sizeof address;
    EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
    port = ntohs(address.sin_port);
  }
  ~Occupied() { ::close(socket); }
};

// `sherd run` only starts the ranks here; they see torchrun's variables and the store's address.
TEST_F(BadInput, APortInUseIsNamed) {
  const Occupied occupied;
  const std::string script = fmt::format(
      "export RANK=$SHERD_RANK WORLD_SIZE=2 LOCAL_RANK=$SHERD_RANK LOCAL_WORLD_SIZE=2 SHERD_STORE=127.0.0.1:{}\n"
      "unset SHERD_RANK SHERD_WORLD_SIZE SHERD_LOCAL_RANK SHERD_LOCAL_WORLD_SIZE\n"
      "exec \"$0\" train \"$1\"",
      occupied.port);
  expect_failed(train_by_script(2, script), {fmt::format("port {} of 127.0.0.1", occupied.port), "in use"});
}

TEST_F(BadInput, LaunchersThatDisagreeAreNamed) {
  const ProgramEnd end =
      sherd({"train", config_file_}, {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=zero", "LOCAL_WORLD_SIZE=2"});
  expect_failed(end, {"LOCAL_RANK", "zero"});
}

}  // namespace
}  // namespace sherd::testing
