// Models that someone else has trained: `sherd eval`, `sherd export`, and `sherd train --init-from`. Oracles: what
// transformers computes from the committed directories (tests/golden/huggingface), and the loss in closed form.
#include "tools/train/weights.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <regex>

#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/near.h"
#include "tests/support/op_trap.h"
#include "tests/support/source_path.h"
#include "tests/tools/program_test.h"

namespace sherd::testing {

using namespace train;

namespace {

namespace fs = std::filesystem;

std::string huggingface(const std::string& name) { return source_path("tests/golden/huggingface/" + name); }

Tensor read_tensor(const std::string& path, std::string_view name) {
  const auto file = ckpt::SafetensorsFile::open(path);
  const ckpt::TensorEntry& entry = file.at(name);
  Tensor tensor = Tensor::empty(entry.shape, entry.dtype);
  file.read(entry, 0, {static_cast<std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.bytes())});
  return tensor;
}

/// -mean log softmax(logits)[next token], in f64.
double loss_of(const Tensor& logits, const std::vector<std::int64_t>& tokens) {
  const auto values = logits.to_vector<double>();
  const auto length = static_cast<std::size_t>(logits.size(1)), vocabulary = static_cast<std::size_t>(logits.size(2));
  double sum = 0, count = 0;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    if (i % length + 1 == length) continue;
    double total = 0;
    for (std::size_t v = 0; v < vocabulary; ++v) total += std::exp(values[i * vocabulary + v]);
    sum += std::log(total) - values[i * vocabulary + static_cast<std::size_t>(tokens[i + 1])];
    ++count;
  }
  return sum / count;
}

/// The number that eval printed; NaN if it printed anything else.
double printed_loss(const ProgramEnd& end) {
  std::smatch match;
  EXPECT_EQ(end.status, 0) << end.err;
  const bool found = std::regex_match(end.out, match, std::regex(R"((?:\[0\] )?loss (\d+\.\d+)\n)"));
  EXPECT_TRUE(found) << end.out;
  return found ? std::stod(match[1]) : std::nan("");
}

class WeightsProgram : public ProgramTest {
 protected:
  std::string write_tokens(const std::vector<std::int64_t>& values, const Shape& shape,
                           std::string_view name = "tokens", DType dtype = DType::i64) const {
    const ckpt::TensorBytes tensor{{std::string(name), dtype, shape}, std::as_bytes(std::span(values))};
    ckpt::write_safetensors(dir_ / "tokens.safetensors", std::span(&tensor, 1));
    return dir_ / "tokens.safetensors";
  }
  ProgramEnd eval(int ranks, const Words& words) const {
    Words command;
    if (ranks > 1) command = {"run", "-n", std::to_string(ranks), "--", SHERD_PROGRAM};
    command.emplace_back("eval");
    command.insert(command.end(), words.begin(), words.end());
    return sherd(command);
  }
  /// A checkpoint of three steps of `config`.
  std::string train_checkpoint(TrainConfig config, int ranks = 1) const {
    config.steps = 3;
    config.save = dir_ / "checkpoint";
    train_tiny(config, ranks);
    return config.save;
  }
  static void expect_refused(const ProgramEnd& end, std::initializer_list<std::string_view> parts,
                             int status = kFailed) {
    EXPECT_EQ(end.status, status) << end.err;
    EXPECT_FALSE(end.timed_out);
    expect_within(end.err, parts);
  }
};

TEST_F(WeightsProgram, EvalGivesTheLogitsOfTransformers) {
  for (const char* name : {"gpt2_old", "llama"}) {
    const Golden golden(std::string("huggingface/") + name);
    const GoldenTensor &tokens = golden.at("in.tokens"), &logits = golden.at("out.logits");
    const std::string file = write_tokens(tokens.i64, Shape{std::span<const std::int64_t>(tokens.shape)});
    const Tensor expected = Tensor::from<float>(logits.f32, Shape{std::span<const std::int64_t>(logits.shape)});
    const double loss = loss_of(expected, tokens.i64);
    std::string bytes;
    for (const int ranks : {1, 2}) {  // three sequences: one rank repeats one
      const std::string out = dir_ / fmt::format("logits-{}.safetensors", ranks);
      EXPECT_NEAR(printed_loss(eval(ranks, {huggingface(name), "--tokens", file, "--logits", out})), loss, 1e-5);
      EXPECT_TRUE(near(read_tensor(out, "logits"), expected, 1e-5));
      if (bytes.empty()) bytes = dir_.read("logits-1.safetensors");
    }
    EXPECT_TRUE(dir_.read("logits-2.safetensors") == bytes) << "the number of ranks changed bits";
    EXPECT_NEAR(printed_loss(eval(1, {huggingface(name), "--tokens", file})), loss, 1e-5) << "without the logits";
  }
}

TEST_F(WeightsProgram, EvalReadsCheckpoints) {
  const std::string checkpoint = train_checkpoint(tiny_llama(data_), 2);
  std::vector<std::int64_t> tokens(5 * 12);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int64_t>(i * i % 29);
  const std::string file = write_tokens(tokens, {5, 12}), out = dir_ / "logits.safetensors";
  const double loss = printed_loss(eval(1, {checkpoint, "--tokens", file, "--logits", out}));
  const Tensor logits = read_tensor(out, "logits");
  EXPECT_EQ(logits.shape(), (Shape{5, 12, 29}));
  EXPECT_NEAR(loss, loss_of(logits, tokens), 1e-6);
  EXPECT_EQ(printed_loss(eval(3, {checkpoint, "--tokens", file, "--logits", out})), loss);
}

TEST_F(WeightsProgram, EvalRefusesWhatItCannotRead) {
  const std::string model = huggingface("gpt2"), good = write_tokens({1, 2, 3, 4}, {2, 2});
  const auto refused = [&](const Words& words, std::initializer_list<std::string_view> parts, int status = kFailed) {
    expect_refused(eval(1, words), parts, status);
    expect_refused(eval(2, words), parts, status);
  };
  refused({model}, {"--tokens"}, kUsage);
  refused({"--tokens", good}, {"one folder"}, kUsage);
  refused({dir_ / "nothing", "--tokens", good}, {"nothing", "manifest.json", "config.json"});
  refused({model, "--tokens", dir_ / "none.safetensors"}, {"none.safetensors", "No such file"});
  refused({model, "--tokens", good, "--logits", dir_ / "no/where"}, {"no/where", "No such file"});
  refused({model, "--tokens", good, "--token", "3"}, {"--token", "--tokens"}, kUsage);
  refused({model, "--tokens", write_tokens({1, 2, 3, 67}, {2, 2})}, {"token 1 of sequence 1 is 67", "67 tokens"});
  refused({model, "--tokens", write_tokens({1, 2, -1, 3}, {2, 2})}, {"token 0 of sequence 1 is -1"});
  refused({model, "--tokens", write_tokens({1, 2, 3, 4}, {4})},
          {"tokens.safetensors", "[4]", "i64 [sequences, tokens]"});
  refused({model, "--tokens", write_tokens({1, 2}, {2, 1})}, {"[2,1]", "two tokens"});
  refused({model, "--tokens", write_tokens({}, {0, 5})}, {"[0,5]"});
  refused({model, "--tokens", write_tokens(std::vector<std::int64_t>(17, 1), {1, 17})}, {"17 tokens", "takes 16"});
  refused({model, "--tokens", write_tokens({1, 2, 3, 4}, {2, 2}, "ids")}, {"tokens.safetensors", "\"tokens\""});
  refused({model, "--tokens", write_tokens({1}, {1, 2}, "tokens", DType::i32)}, {"i32[1,2]", "i64"});
}

TEST_F(WeightsProgram, ExportGoesThereAndBack) {
  const std::string checkpoint = train_checkpoint(tiny_config(data_)), file = write_tokens({1, 2, 3, 4, 5, 6}, {2, 3});
  const double loss = printed_loss(eval(1, {checkpoint, "--tokens", file}));
  const ProgramEnd exported = sherd({"export", checkpoint, dir_ / "hf", "--max-file-bytes", "9KB"});
  ASSERT_EQ(exported.status, 0) << exported.err;
  const auto model = nn::make_language_model(Weights(checkpoint).config());
  expect_within(exported.out,
                {fmt::format("wrote {}: GPT2LMHeadModel, {} parameters, f32, ", dir_ / "hf", model->num_parameters()),
                 " KB\n  config.json, model-00001-of-0000", "model.safetensors.index.json\n"});
  EXPECT_EQ(std::count(exported.out.begin(), exported.out.end(), '\n'), 2);
  EXPECT_TRUE(fs::exists(dir_ / "hf/model.safetensors.index.json"));
  EXPECT_EQ(printed_loss(eval(1, {dir_ / "hf", "--tokens", file})), loss);
  ASSERT_EQ(sherd({"export", dir_ / "hf", dir_ / "again"}).status, 0);
  for (const auto& entry : fs::directory_iterator(dir_ / "hf")) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(dir_.read("again/" + name) == dir_.read("hf/" + name)) << name;
  }
  expect_refused(sherd({"export", checkpoint, dir_ / "hf"}), {"hf", "not an empty folder"});
  expect_refused(sherd({"export", checkpoint, dir_ / "f8", "--dtype", "f8"}), {"f8"}, kUsage);
  expect_refused(sherd({"export", checkpoint}), {"two folders"}, kUsage);
  expect_refused(sherd({"sample", dir_ / "hf"}), {"hf", "Hugging Face", "text"});
}

TEST_F(WeightsProgram, AGptWithoutBiasesIsTheSameModelElsewhere) {
  TrainConfig config = tiny_config(data_);
  config.model.bias = false;
  const std::string checkpoint = train_checkpoint(config), file = write_tokens({1, 2, 3, 4, 5, 6}, {2, 3});
  const double loss = printed_loss(eval(1, {checkpoint, "--tokens", file}));
  const ProgramEnd exported = sherd({"export", checkpoint, dir_ / "hf"});
  ASSERT_EQ(exported.status, 0) << exported.err;
  expect_within(exported.out, {"GPT2LMHeadModel", "zeros for the biases"});
  EXPECT_NEAR(printed_loss(eval(1, {dir_ / "hf", "--tokens", file})), loss, 1e-7);
  ASSERT_EQ(sherd({"ckpt", "convert", checkpoint, dir_ / "converted"}).status, 0);
  EXPECT_TRUE(dir_.read("converted/model.safetensors") == dir_.read("hf/model.safetensors"));
  ASSERT_EQ(sherd({"ckpt", "convert", dir_ / "converted", dir_ / "back"}).status, 0);
  EXPECT_NEAR(printed_loss(eval(1, {dir_ / "back", "--tokens", file})), loss, 1e-7);
}

// ---- training from weights ----

class InitFrom : public WeightsProgram {
 protected:
  TrainConfig load(const Words& flags) const {
    const std::string file =
        dir_.write("init.toml", fmt::format("data = \"{}\"\nvocabulary = \"chars\"\nsteps = 3\n", data_));
    std::vector<std::string_view> args{file};
    args.insert(args.end(), flags.begin(), flags.end());
    return *load_train_config(args);
  }
};

TEST_F(InitFrom, KeysThatAreNotGivenAreThoseOfTheWeights) {
  const TrainConfig::Model m = load({"--init-from", huggingface("llama")}).model;
  EXPECT_EQ(m.style, "llama");
  EXPECT_EQ(m.vocabulary, 67);
  EXPECT_EQ(m.layers, 2);
  EXPECT_EQ(m.heads, 6);
  EXPECT_EQ(m.kv_heads, 2);
  EXPECT_EQ(m.width, 24);
  EXPECT_EQ(m.hidden, 40);
  EXPECT_EQ(m.positions, 32);
  EXPECT_EQ(m.sequence, 32) << "the default, but no longer than the model";
  EXPECT_EQ(m.rope_theta, 500);
  EXPECT_EQ(m.norm_eps, 1e-4);
  EXPECT_FALSE(m.tied_head);
  EXPECT_FALSE(m.bias);
  const TrainConfig::Model g =
      load({"--init-from", huggingface("gpt2"), "--model.sequence", "8", "--model.dropout", "0.1"}).model;
  EXPECT_EQ(g.style, "gpt2");
  EXPECT_EQ(g.gelu, "tanh");
  EXPECT_EQ(g.positions, 16);
  EXPECT_EQ(g.sequence, 8);
  EXPECT_EQ(g.dropout, 0.1);
  EXPECT_TRUE(g.bias);
}

TEST_F(InitFrom, KeysThatAreGivenMustAgree) {
  const auto refused = [&](const Words& words, std::initializer_list<std::string_view> parts) {
    Words command{"--init-from", huggingface("llama"), "--threads", "1"};
    command.insert(command.end(), words.begin(), words.end());
    TrainConfig config;
    try {
      config = load(command);
    } catch (const Error& error) {
      for (const auto part : parts) EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      return;
    }
    run_ranks(2, [&](const auto& group) { expect_error([&] { Trainer trainer(config, group); }, parts); });
  };
  refused({"--model.width", "48"}, {"model.width = 48", "llama", "24"});
  refused({"--model.rope-theta", "10000"}, {"model.rope_theta = 10000", "500"});
  refused({"--model.style", "gpt2", "--model.kv-heads", "6"}, {"model.style", "gpt2", "llama"});
  refused({"--model.vocabulary", "66"}, {"model.vocabulary = 66", "67"});
  refused({"--model.sequence", "33"}, {"model.sequence = 33", "model.positions = 32"});
  refused({"--vocabulary", "bytes"}, {"model.vocabulary = 67", "256"});
}

TEST_F(InitFrom, TrainingStartsFromTheWeightsOnAnyNumberOfRanks) {
  TrainConfig config = load({"--init-from", huggingface("llama"), "--batch", "6", "--threads", "1"});
  const nn::HuggingFaceWeights weights(config.init_from);
  const auto model = nn::make_language_model(weights.config());
  model->materialize();
  weights.load(*model);
  const TinyRun one = train_tiny(config, 1);
  for (const auto& [name, parameter] : model->named_parameters())
    EXPECT_EQ(one.initial.at(name), parameter->value().to_vector<float>()) << name;
  const TinyRun three = train_tiny(config, 3);
  EXPECT_EQ(three.initial, one.initial);
  EXPECT_NEAR(three.losses.back(), one.losses.back(), 1e-5);

  // Its checkpoints are like any other: they resume bit for bit, and need the weights no more.
  config.save = dir_ / "checkpoint";
  config.steps = 2;
  train_tiny(config, 1);
  config.steps = 3;
  config.save.clear();
  config.resume = dir_ / "checkpoint";
  config.init_from = dir_ / "gone";
  EXPECT_EQ(train_tiny(config, 1).losses.back(), one.losses.back());
  EXPECT_EQ(sherd({"sample", dir_ / "checkpoint", "--tokens", "50"}).status, 0) << "of 67 tokens 29 are text";
  EXPECT_EQ(load({"--init-from", dir_ / "gone", "--resume", dir_ / "checkpoint"}).model.rope_theta, 500);
}

TEST_F(InitFrom, ACheckpointBringsItsVocabulary) {
  const TrainConfig first = tiny_llama(data_);
  train_checkpoint(first);
  TrainConfig config = load({"--init-from", dir_ / "checkpoint", "--batch", "6", "--threads", "1"});
  EXPECT_EQ(config.model.sequence, 12);
  // Fewer characters than the checkpoint knows: tokens still mean what they meant.
  config.data = dir_.write("other.txt", std::string(400, 'e') + std::string(400, 'a'));
  const TinyRun run = train_tiny(config, 2, [](Trainer& trainer) {
    EXPECT_EQ(trainer.data().vocabulary().size(), 29);
    EXPECT_EQ(trainer.first_step(), 0) << "weights only";
  });
  TrainConfig resumed = first;
  resumed.steps = 3;
  resumed.resume = dir_ / "checkpoint";
  EXPECT_EQ(run.initial, train_tiny(resumed, 1).initial);
  config.data = dir_.write("other.txt", std::string(400, '#'));
  run_ranks(1, [&](const auto& group) { expect_error([&] { Trainer trainer(config, group); }, {"other.txt", "'#'"}); });
  config.vocabulary = "bytes";
  run_ranks(1, [&](const auto& group) {
    expect_error([&] { Trainer trainer(config, group); }, {"vocabulary = bytes", "chars", "checkpoint"});
  });
}

// Values that a load replaces are not drawn, which took seconds of a start.
TEST_F(InitFrom, DrawsNoInitialValues) {
  const auto start = [](const TrainConfig& config) {
    run_ranks(1, [&](const auto& group) {
      const OpTrap trap("random_normal");
      Trainer trainer(config, group);
    });
  };
  TrainConfig fresh = tiny_llama(data_), loaded = load({"--threads", "1", "--init-from", huggingface("llama")});
  expect_error([&] { start(fresh); }, {"the trap", "random_normal"});
  start(loaded);
  fresh.resume = train_checkpoint(fresh);
  start(fresh);
  start(load({"--threads", "1", "--init-from", dir_ / "checkpoint"}));
}

TEST_F(InitFrom, AsAProgramOnTwoRanks) {
  const std::string file =
      dir_.write("init.toml", fmt::format("data = \"{}\"\nvocabulary = \"chars\"\nsteps = 2\nbatch = 4\n", data_));
  const ProgramEnd end = sherd({"run", "-n", "2", "--", SHERD_PROGRAM, "train", file, "--init-from",
                                huggingface("gpt2"), "--metrics", dir_ / "metrics.jsonl"});
  EXPECT_EQ(end.status, 0) << end.err;
  const TrainConfig config = load({"--init-from", huggingface("gpt2"), "--batch", "4", "--steps", "2"});
  expect_within(dir_.read("metrics.jsonl"), {fmt::format("\"loss\":{}", train_tiny(config, 2).losses[0])});
  expect_refused(sherd({"train", file, "--init-from", dir_ / "none"}), {"none", "config.json"});
}

}  // namespace
}  // namespace sherd::testing
