// What a newcomer gets wrong: each call ends with its status and one line, which names the flag or the file, the value
// and the remedy. A row per call; "{...}" in it stands for what SetUp() has made.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include "nn/checkpoint/format/safetensors.h"
#include "tests/support/source_path.h"
#include "tests/tools/program_here.h"
#include "tests/tools/tiny_run.h"
#include "tools/train/exit_status.h"

namespace sherd::testing {

using namespace train;

namespace {

struct WrongCall {
  const char* args;  ///< words between spaces
  int status;
  std::vector<const char*> says;
};

// {config}: a good config file; {text}: the text it trains on; {save}: the folder of saves of such a run; {hf}: a
// Hugging Face directory of a GPT-2; {dir}: a folder for what a row names, in which are empty.txt, other.txt (no text
// of the save), hash.txt, text.gz, ids.bin, ids.safetensors (token 1000), other.safetensors
// (no "tokens"), and bad-*.toml (kBadConfigs).
const std::vector<WrongCall> kWrongCalls = {
    // ---- numerics ----
    {"train {config} --numerics layout_free --accumulate 2",
     kUsage,
     {"accumulate = 2", "leaves = 8", "leave accumulate out"}},
    {"train {config} --numerics layout_free --leaves 6", kUsage, {"leaves = 6", "take 4 or 8"}},
    {"train {config} --numerics layout_free --batch 12",
     kUsage,
     {"batch = 12", "leaves = 8", "8 or 16, a multiple of 8, or take leaves = 4"}},
    {"plan {config} --model.vocabulary 29 --numerics layout_free --ranks 3",
     kUsage,
     {"leaves = 8", "3 ranks", "2 or 4 of these ranks"}},
    {"plan {config} --model.vocabulary 29 --numerics layout_free --ranks 2 --batch 12",
     kUsage,
     {"batch = 12", "8 or 16"}},
    {"train {config} --numerics layout_free --sums fast", kUsage, {"sums = fast", "layout_free needs ordered"}},
    {"train {config} --numerics layout_free --reduce-dtype bf16", kUsage, {"reduce_dtype = bf16", "leave it at f32"}},
    {"train {config} --numerics exact", kUsage, {"numerics must be default or layout_free", "\"exact\""}},
    // ---- commands ----
    {"trian", kUsage, {"\"trian\"", "did you mean train?", "`sherd help`"}},
    {"generate {save}", kUsage, {"\"generate\"", "`sherd help` lists all"}},
    {"help generate", kUsage, {"\"generate\"", "`sherd help` lists all"}},
    {"help train eval", kUsage, {"sherd help takes one command", "\"train eval\""}},
    {"info all", kUsage, {"sherd info", "\"all\""}},
    {"bench step.chr", kUsage, {"\"step.chr\"", "`sherd bench --help`"}},
    {"walk --model bert", kUsage, {"\"bert\"", "gpt and llama"}},
    {"ckpt", kUsage, {"action is missing", "ls, show, verify, diff, hash or convert"}},
    {"ckpt lss {save}", kUsage, {"\"lss\"", "did you mean ls?"}},
    {"ckpt verify {save} --json", kUsage, {"ckpt verify", "--json", "exit status"}},
    {"ckpt show", kUsage, {"ckpt show DIR", "got 0 words"}},
    {"ckpt show {dir}", kFailed, {"no checkpoint", "{dir}", "a folder that a run saved to"}},
    {"run -n 2", kUsage, {"command is missing", "sherd run -n 2 -- COMMAND"}},
    {"run -n 1.5 -- true", kUsage, {"-n '1.5'", "ranks from 1"}},
    {"run --restart 2 -n 2 -- true", kUsage, {"'--restart'", "did you mean --restarts?"}},
    // ---- flags ----
    {"train", kUsage, {"nothing to train on", "--data PATH", "--resume DIR"}},
    {"train {config} more.toml", kUsage, {"one config file", "\"more.toml\""}},
    {"train {config} --lr 1e-4", kUsage, {"--lr", "did you mean --optimizer.lr?"}},
    {"train {config} --batch-size 8", kUsage, {"--batch-size", "did you mean --batch?"}},
    {"train {config} --model.layer 2", kUsage, {"--model.layer", "did you mean --model.layers?"}},
    {"train {config} --wandb true", kUsage, {"--wandb", "--help lists all"}},
    {"train {config} --tokenizer gpt2", kUsage, {"--tokenizer", "--help lists all"}},
    {"train {config} --steps", kUsage, {"--steps needs a value"}},
    {"train {config} --steps ten", kUsage, {"--steps", "an integer, as 1000 or 1e3", "\"ten\""}},
    {"train {config} --steps 1.5", kUsage, {"--steps", "an integer", "\"1.5\""}},
    {"train {config} --steps 1e-3", kUsage, {"--steps", "an integer", "\"1e-3\""}},
    {"train {config} --steps 0", kUsage, {"steps must be at least 1", "0"}},
    {"train {config} --compile=yes", kUsage, {"--compile", "true or false", "\"yes\""}},
    {"train {config} --compile yes", kUsage, {"--compile", "true or false", "\"yes\""}},
    {"train {config} --compile 1", kUsage, {"--compile", "true or false", "\"1\""}},
    {"train {config} --dump-graph {dir}/graph", kUsage, {"dump_graph = {dir}/graph", "set compile"}},
    {"train {config} --passes -budget", kUsage, {"passes = -budget", "set compile"}},
    {"train {config} --compile --passes -buget", kUsage, {"no pass \"buget\"", "did you mean budget?"}},
    {"train {config} --compile --passes budget", kUsage, {"\"budget\"", "a minus", "-budget"}},
    {"train {config} --compile --passes -ssa", kUsage, {"the pass budget needs", "ssa", "leave it out too"}},
    {"train {config} --compile --memory-budget 75% --passes -budget",
     kUsage,
     {"memory_budget = 75%", "passes = -budget", "leave one of them out"}},
    {"train {config} --memory-limit 8gigs", kUsage, {"--memory-limit", "8GB", "8GiB", "\"8gigs\""}},
    {"train {config} --offload optimizer --offload-keep 1.5", kUsage, {"--offload-keep", "bytes", "\"1.5\""}},
    {"train {config} --units bytes=lots", kUsage, {"units \"bytes=lots\"", "bytes=32MB"}},
    {"train {config} --link 10Gb,0", kUsage, {"link", "BYTES_PER_S,SECONDS", "10GB,0", "\"10Gb,0\""}},
    {"train {config} --mesh dp2", kUsage, {"mesh = \"dp2\"", "dp=2,tp=2"}},
    {"train {config} --mesh pp=2", kUsage, {"mesh = \"pp=2\"", "\"pp\"", "replicate, dp, tp"}},
    {"train {config} --mesh dp=2,tp=2", kUsage, {"\"dp=2,tp=2\"", "4 ranks", "has 1", "sherd run -n 4", "--mesh \"\""}},
    {"train {config} --strategy fullshard", kUsage, {"\"fullshard\"", "did you mean full_shard?"}},
    {"train {config} --strategy hybrid_shard", kUsage, {"hybrid_shard", "sherd run -n 4", "--mesh replicate=2,dp=2"}},
    {"train {config} --param-dtype fp16", kUsage, {"param_dtype", "f32, bf16, f16", "\"fp16\""}},
    {"train {config} --device gpu", kUsage, {"device", "cuda", "\"gpu\""}},
    {"train {config} --batch 7 --accumulate 2", kUsage, {"batch = 7", "a multiple of accumulate = 2"}},
    {"train {config} --optimizer.min-lr 1", kUsage, {"optimizer.min_lr", "optimizer.lr = 0.01", "got 1"}},
    {"train {config} --model.width 33", kUsage, {"model.width = 33", "model.heads = 2"}},
    {"train {config} --save-every 5", kUsage, {"save_every = 5", "--save DIR"}},
    {"train {config} --metrics {text}", kUsage, {"data = \"{text}\"", "metrics", "one file"}},
    {"train {config} --trace {text}", kUsage, {"data = \"{text}\"", "trace", "one file"}},
    {"train {config} --metrics {config}", kUsage, {"the config file = \"{config}\"", "one file"}},
    {"train {config} --metrics {dir}/new --trace {dir}/new", kUsage, {"metrics", "trace", "one file"}},
    {"train {config} --metrics {dir}/other.txt", kUsage, {"metrics file \"{dir}/other.txt\"", "something else"}},
    {"train {config} --trace {dir}/other.txt", kUsage, {"trace file \"{dir}/other.txt\"", "something else"}},
    // ---- config files ----
    {"train nothing.toml", kFailed, {"\"nothing.toml\"", "No such file"}},
    {"train {text}", kUsage, {"{text}:1", "--data {text}"}},
    {"train {dir}/bad-key.toml", kUsage, {"bad-key.toml:2", "model.layer", "did you mean model.layers?"}},
    {"train {dir}/bad-unknown.toml", kUsage, {"bad-unknown.toml:1", "wandb", "--help lists all"}},
    {"train {dir}/bad-count.toml", kUsage, {"bad-count.toml:1", "steps", "an integer", "1.5"}},
    {"train {dir}/bad-bytes.toml", kUsage, {"bad-bytes.toml:1", "memory_limit", "8GB", "\"8 gigs\""}},
    {"train {dir}/bad-range.toml", kUsage, {"bad-range.toml: steps must be at least 1, got 0"}},
    {"train {dir}/bad-range.toml --lr 1", kUsage, {"--lr", "did you mean --optimizer.lr?"}},
    {"train {dir}/bad-mesh.toml", kUsage, {"\"dp=7\"", "7 ranks", "has 1"}},
    {"walk --link 10Gb,0", kUsage, {"link must be BYTES_PER_S,SECONDS", "\"10Gb,0\""}},
    // ---- data and saves ----
    {"train --data {dir}/nothing.txt", kFailed, {"nothing.txt", "No such file"}},
    {"train --data {dir}/empty.txt", kFailed, {"empty.txt", "a folder of texts"}},
    {"train --data {dir}/ids.safetensors",
     kUsage,
     {"ids.safetensors\" is safetensors", "sherd eval --tokens", "--vocabulary bytes"}},
    {"train --data {dir}/text.gz", kUsage, {"text.gz\" is gzip", "gunzip", "--vocabulary bytes"}},
    {"train --data {dir}/ids.bin", kUsage, {"ids.bin\" is binary by its name", "--vocabulary bytes"}},
    {"train --data {text} --init-from {hf}", kUsage, {"init_from = {hf}", "67 tokens", "256 bytes", "--vocabulary"}},
    {"train --data {dir}/hash.txt --init-from {save}", kUsage, {"hash.txt", "'#'", "not among the 29 characters"}},
    {"train --init-from {save}", kUsage, {"--init-from {save}", "--data PATH"}},
    {"train {config} --init-from {dir}", kFailed, {"\"{dir}\"", "manifest.json", "config.json"}},
    {"train {config} --init-from {save} --model.width 32",
     kUsage,
     {"model.width = 32", "{save}", "16", "leave the key out"}},
    {"train --resume {dir}", kUsage, {"no checkpoint", "{dir}", "a folder that a run saved to"}},
    {"train --resume {save} --optimizer.lr 1", kUsage, {"optimizer.lr = 0.01", "1", "leave it out"}},
    {"train --resume {save} --mesh dp3", kUsage, {"mesh = \"dp3\"", "dp=2,tp=2"}},
    {"train --resume {save} --mesh dp=3", kUsage, {"\"dp=3\"", "3 ranks", "has 1"}},
    {"train --resume {save} --optimizer.lr 1e-5", kUsage, {"optimizer.lr = 0.01", "1e-05", "leave it out"}},
    {"train --resume {save} --model.heads 4", kUsage, {"model.heads = 2", "4", "leave it out"}},
    {"train --resume {save} --data {dir}/other.txt", kUsage, {"other.txt", "--data PATH", "--init-from {save}"}},
    {"train --resume {save} --steps 1", kUsage, {"2 steps", "1 in all", "--steps"}},
    {"train {config} --save {save}", kUsage, {"\"{save}\"", "--resume", "--overwrite", "another folder"}},
    {"train --resume {save} --save {dir}/branch --steps 3",
     kUsage,
     {"--save {dir}/branch", "metrics.jsonl\" has the lines of the run that saves to {save}", "--metrics FILE"}},
    {"eval {hf} --tokens {dir}/ids.safetensors --logits {text}", kUsage, {"logits", "which would be lost"}},
    {"eval {hf} --tokens {dir}/ids.safetensors --logits {dir}/ids.safetensors",
     kUsage,
     {"tokens = ", "logits = ", "one file"}},
    {"walk {config} --svg {text}", kUsage, {"picture", "which would be lost"}},
    {"sample", kUsage, {"one checkpoint folder", "got 0 words"}},
    {"sample {hf}", kFailed, {"{hf}", "Hugging Face", "a save of sherd train"}},
    {"sample {save} --temperature -1", kUsage, {"--temperature", "-1"}},
    {"sample {save} --tokens 1e-1", kUsage, {"--tokens", "an integer", "\"1e-1\""}},
    {"eval {save}", kUsage, {"--tokens FILE", "--data TEXT"}},
    {"eval {hf} --tokens {dir}/ids.safetensors --vocabulary bytes",
     kUsage,
     {"--vocabulary bytes", "--data", "--tokens"}},
    {"eval {hf} --tokens {dir}/other.safetensors", kFailed, {"other.safetensors", "\"tokens\"", "but ids"}},
    {"eval {save} --tokens {text}", kFailed, {"--tokens", "{text}\" is not a safetensors file", "--data"}},
    {"eval {hf} --data {text}", kFailed, {"--data {text}", "{hf}", "Hugging Face", "--tokens"}},
    {"eval {hf} --tokens {dir}/ids.safetensors", kFailed, {"ids.safetensors", "is 1000", "67 tokens"}},
    {"export {save}", kUsage, {"two folders", "got 1 words"}},
    {"export {save} {dir}/out --dtype f8", kUsage, {"--dtype", "f32, bf16, f16", "\"f8\""}},
    {"export {save} {dir}", kFailed, {"\"{dir}\"", "not an empty folder", "a new one"}},
    {"export {save} {dir}/out --max-file-bytes 1.5", kUsage, {"--max-file-bytes", "8GB", "\"1.5\""}},
};

constexpr std::pair<const char*, const char*> kBadConfigs[] = {
    {"bad-key.toml", "[model]\nlayer = 2\n"}, {"bad-unknown.toml", "wandb = true\n"},
    {"bad-count.toml", "steps = 1.5\n"},      {"bad-bytes.toml", "memory_limit = \"8 gigs\"\n"},
    {"bad-range.toml", "steps = 0\n"},        {"bad-mesh.toml", "data = \"bad-mesh.toml\"\nmesh = \"dp=7\"\n"},
};

class WrongCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    TrainConfig config = tiny_config(dir_.write("data/text.txt", tiny_text()));
    dir_.write("tiny.toml", to_toml(config));
    config.steps = 2;
    config.save = dir_ / "save";
    config.metrics = dir_ / "metrics.jsonl";
    train_tiny(config, 1);
    dir_.write("metrics.jsonl", "{\"config\":{}}\n");
    for (const auto& [name, text] : kBadConfigs) dir_.write(fmt::format("files/{}", name), text);
    dir_.write("files/empty.txt", "");
    dir_.write("files/hash.txt", "#" + tiny_text());
    dir_.write("files/text.gz", "\x1F\x8B\x08");
    dir_.write("files/ids.bin", "ids");
    dir_.write("files/other.txt", tiny_text() + "ok");
    const std::vector<std::int64_t> ids{1, 1000, 2, 3};
    const ckpt::TensorBytes tensor{{"tokens", DType::i64, {2, 2}}, std::as_bytes(std::span(ids))};
    ckpt::write_safetensors(dir_ / "files/ids.safetensors", std::span(&tensor, 1));
    const ckpt::TensorBytes other{{"ids", DType::i64, {2, 2}}, tensor.bytes};
    ckpt::write_safetensors(dir_ / "files/other.safetensors", std::span(&other, 1));
  }

  std::string filled(std::string text) const {
    const std::pair<const char*, std::string> names[] = {{"{config}", dir_ / "tiny.toml"},
                                                         {"{text}", dir_ / "data/text.txt"},
                                                         {"{save}", dir_ / "save"},
                                                         {"{dir}", dir_ / "files"},
                                                         {"{hf}", source_path("tests/golden/huggingface/gpt2")}};
    for (const auto& [name, value] : names)
      for (std::size_t at = 0; (at = text.find(name, at)) != text.npos; at += value.size())
        text.replace(at, std::string_view(name).size(), value);
    return text;
  }

  std::vector<std::string> words_of(const char* args) const {
    std::istringstream stream(args);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(filled(word));
    return words;
  }

  TempDir dir_;
};

// What a run says of its CPUs before it looks at the data is no answer.
std::string answer_of(std::string text) {
  if (text.starts_with("cpus: ")) text.erase(0, text.find('\n') + 1);
  return text;
}

TEST_F(WrongCalls, EachIsAnsweredInOneLineWithItsStatus) {
  for (const WrongCall& call : kWrongCalls) {
    const ProgramEnd end = sherd_here(words_of(call.args));
    const std::string answer = answer_of(end.err);
    SCOPED_TRACE(fmt::format("sherd {}\n{}", call.args, end.err));
    EXPECT_EQ(end.status, call.status);
    EXPECT_EQ(end.out, "");
    EXPECT_TRUE(answer.starts_with("sherd: "));
    EXPECT_EQ(std::count(answer.begin(), answer.end(), '\n'), 1);
    for (const char* part : call.says)
      EXPECT_NE(answer.find(filled(part)), answer.npos) << "\"" << filled(part) << "\" is not in it";
  }
}

}  // namespace
}  // namespace sherd::testing
