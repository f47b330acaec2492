// Hugging Face directories against transformers itself: the committed ones were written by it, and what it computes
// from them lies beside them (tools/golden/make_huggingface.py).
#include "nn/interop/huggingface.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "nn/interop/huggingface_config.h"
#include "nn/optim/adamw.h"
#include "nn/optim/sgd.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/parallel/tensor_parallel.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"
#include "tests/support/source_path.h"
#include "tests/support/temp_dir.h"

namespace sherd::nn {
namespace {

using namespace ckpt;

namespace fs = std::filesystem;
using nlohmann::json;
using testing::expect_error;
using testing::Golden;
using testing::near;
using testing::run_ranks;
using testing::same_bits;
using testing::TempDir;
using Group = std::shared_ptr<ProcessGroup>;

std::string directory_of(const std::string& name) { return testing::source_path("tests/golden/huggingface/" + name); }

Tensor plain_tensor(const testing::GoldenTensor& golden) {
  const Shape shape{std::span<const std::int64_t>(golden.shape)};
  return golden.dtype == "I64" ? Tensor::from<std::int64_t>(golden.i64, shape) : Tensor::from<float>(golden.f32, shape);
}

std::string bytes_of(const SafetensorsFile& file, const TensorEntry& entry) {
  std::string bytes(static_cast<std::size_t>(entry.bytes), '\0');
  file.read(entry, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::unique_ptr<LanguageModel> loaded(const HuggingFaceWeights& weights) {
  auto model = make_language_model(weights.config());
  model->materialize();
  weights.load(*model);
  return model;
}

std::string read_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(text).str();
}

/// The same files, byte by byte: headers, order and metadata too.
void expect_equal_directories(const std::string& actual, const std::string& expected) {
  const auto names = [](const std::string& dir) {
    std::set<std::string> result;
    for (const auto& entry : fs::directory_iterator(dir)) result.insert(entry.path().filename().string());
    return result;
  };
  ASSERT_EQ(names(actual), names(expected));
  for (const std::string& name : names(expected))
    EXPECT_TRUE(read_file(fs::path(actual) / name) == read_file(fs::path(expected) / name)) << name;
}

class HuggingFace : public ::testing::TestWithParam<std::string> {
 protected:
  Tensor golden(const std::string& key) const { return plain_tensor(golden_.at(key)); }
  double number(const char* key) const { return golden_.number(GetParam(), key); }

  Golden golden_{"huggingface/" + GetParam()};
  HuggingFaceWeights weights_{directory_of(GetParam())};
  TempDir dir_;
};

TEST_P(HuggingFace, LogitsAreThoseOfTransformers) {
  const auto model = loaded(weights_);
  EXPECT_TRUE(near((*model)(golden("in.tokens"), Tensor()), golden("out.logits"), 1e-5));
}

TEST_P(HuggingFace, TrainingSeesTheLossesOfTransformers) {
  const auto model = loaded(weights_);
  AdamW optimizer(model->parameters(), {.lr = number("lr"),
                                        .beta1 = number("beta1"),
                                        .beta2 = number("beta2"),
                                        .eps = number("eps"),
                                        .weight_decay = number("weight_decay"),
                                        .decay_matrices_only = true});
  const auto losses = golden("out.losses").to_vector<double>();
  ASSERT_EQ(losses.size(), 20u);
  EXPECT_LT(losses.back(), 0.9 * losses.front()) << "the oracle itself must learn";
  for (std::size_t step = 0; step < losses.size(); ++step) {
    const Tensor loss = (*model)(golden("in.tokens"), golden("in.targets"));
    EXPECT_NEAR(loss.item<double>(), losses[step], 1e-4) << "step " << step;
    backward(loss);
    optimizer.step_and_clear();
  }
}

TEST_P(HuggingFace, IsWrittenBackTheSame) {
  const auto model = loaded(weights_);
  run_ranks(1, [&](const Group& group) {
    save_huggingface(dir_ / "copy", weights_.config(), *model, *group, {.like = &weights_});
  });
  expect_equal_directories(dir_ / "copy", weights_.dir());
}

TEST_P(HuggingFace, F24_F167_ShardsLoadAndAreWrittenBackTheSame) {
  const Tensor expected = (*loaded(weights_))(golden("in.tokens"), Tensor());
  for (const int ranks : {2, 3, 5}) {
    const std::string copy = dir_ / fmt::format("copy-{}", ranks);
    run_ranks(ranks, [&](const Group& group) {
      const DeviceMesh mesh(group);
      auto model = make_language_model(weights_.config());
      for (Module* block : model->blocks()) fully_shard(*block, mesh);
      fully_shard(*model, mesh);
      model->materialize();
      weights_.load(*model);
      save_huggingface(copy, weights_.config(), *model, *group, {.like = &weights_});
      EXPECT_TRUE(same_bits((*model)(golden("in.tokens"), Tensor()), expected));
    });
    expect_equal_directories(copy, weights_.dir());
  }
}

// Columns of a matrix on one rank, rows of those on another; of a transposed GPT-2 weight the other way round.
TEST_P(HuggingFace, F24_F167_PartsOfTwoAxesLoadAndAreWrittenBackTheSame) {
  const int tp = std::holds_alternative<Gpt::Config>(weights_.config()) ? 3 : 2;  // divides the heads
  run_ranks(2 * tp, [&](const Group& group) {
    const DeviceMesh root(group, {{"dp", 2}, {"tp", tp}});
    auto model = make_language_model(weights_.config());
    parallelize(*model, root["tp"], make_plan(weights_.config(), {.sequence_parallel = true}));
    for (Module* block : model->blocks()) fully_shard(*block, root["dp"]);
    fully_shard(*model, root["dp"]);
    model->materialize();
    weights_.load(*model);
    save_huggingface(dir_ / "copy", weights_.config(), *model, *group, {.like = &weights_});
    const GradMode off(false);
    const Tensor loss = (*model)(golden("in.tokens"), golden("in.targets"));
    EXPECT_NEAR(loss.item<double>(), golden("out.losses").to_vector<double>()[0], 1e-4);
  });
  expect_equal_directories(dir_ / "copy", weights_.dir());
}

TEST_P(HuggingFace, F167_ANewDirectoryHoldsTheSameModel) {
  const auto model = loaded(weights_);
  for (const std::int64_t limit : {std::int64_t{1} << 40, std::int64_t{10'000}}) {
    const std::string path = dir_ / fmt::format("new-{}", limit);
    run_ranks(1, [&](const Group& group) {
      save_huggingface(path, weights_.config(), *model, *group, {.max_file_bytes = limit});
    });
    EXPECT_EQ(fs::exists(path + "/model.safetensors"), limit > 10'000);
    const HuggingFaceWeights again(path);
    EXPECT_EQ(config_to_huggingface(again.config()), config_to_huggingface(weights_.config()));
    EXPECT_TRUE(same_bits((*loaded(again))(golden("in.tokens"), Tensor()), (*model)(golden("in.tokens"), Tensor())));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, HuggingFace, ::testing::Values("gpt2", "gpt2_old", "llama", "llama_4", "llama_tied"),
                         [](const auto& model) { return model.param; });

// ---- directories that are wrong ----

/// A copy of a committed directory, to be damaged.
class BadHuggingFace : public ::testing::Test {
 protected:
  explicit BadHuggingFace(const std::string& name = "llama") {
    fs::copy(directory_of(name), dir_.path(), fs::copy_options::recursive);
  }
  void expect_refused(std::initializer_list<std::string_view> parts) const {
    expect_error([&] { HuggingFaceWeights weights(dir_.path()); }, parts);
    expect_error([&] { HuggingFaceWeights weights(dir_.path()); }, {dir_.path()});
  }
  json read(const char* name) const { return json::parse(dir_.read(name)); }
  void expect_config_refused(const json& change, std::initializer_list<std::string_view> parts) const {
    const json config = read("config.json");
    json changed = config;
    changed.merge_patch(change);
    dir_.write("config.json", changed.dump());
    expect_refused({"config.json"});
    expect_refused(parts);
    dir_.write("config.json", config.dump());
  }
  /// Tensors of one file, changed by `change` and written back.
  void rewrite(const char* name, const std::function<void(std::vector<TensorBytes>&)>& change) const {
    const std::string path = dir_ / name;
    std::vector<std::string> bytes;
    std::vector<TensorBytes> tensors;
    {
      const auto file = SafetensorsFile::open(path);
      for (const TensorEntry& entry : file.tensors()) bytes.push_back(bytes_of(file, entry));
      for (std::size_t i = 0; i < bytes.size(); ++i)
        tensors.push_back({file.tensors()[i], std::as_bytes(std::span(bytes[i]))});
    }
    change(tensors);
    write_safetensors(path, tensors);
  }
  TempDir dir_;
};

class BadGpt2 : public BadHuggingFace {
 protected:
  BadGpt2() : BadHuggingFace("gpt2_old") {}
};

TEST_F(BadHuggingFace, ConfigsOfOtherModelsAreRefusedByName) {
  expect_config_refused({{"architectures", {"MistralForCausalLM"}}}, {"MistralForCausalLM", "LlamaForCausalLM"});
  expect_config_refused({{"architectures", json::array()}}, {"architectures", "[]"});
  expect_config_refused({{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}}, {"rope_scaling", "llama3"});
  expect_config_refused({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}, {"rope_scaling", "linear"});
  expect_config_refused({{"rope_parameters", {{"rope_type", "yarn"}}}}, {"rope_parameters", "yarn"});
  expect_config_refused({{"quantization_config", {{"quant_method", "gptq"}}}}, {"quantization_config"});
  expect_config_refused({{"rope_interleaved", true}}, {"rope_interleaved", "true"});
  expect_config_refused({{"attention_bias", true}}, {"attention_bias", "true"});
  expect_config_refused({{"hidden_act", "gelu"}}, {"hidden_act", "gelu", "silu"});
  expect_config_refused({{"head_dim", 8}}, {"head_dim", "8", "4"});
  expect_config_refused({{"hidden_size", nullptr}}, {"hidden_size", "missing"});
  expect_config_refused({{"hidden_size", -24}}, {"hidden_size", "-24"});
  expect_config_refused({{"hidden_size", 24.5}}, {"hidden_size", "24.5"});
  expect_config_refused({{"num_attention_heads", 7}}, {"hidden_size", "24", "7"});
  expect_config_refused({{"num_key_value_heads", 4}}, {"num_key_value_heads", "4", "6"});
  expect_config_refused({{"num_hidden_layers", 1'000'000'000}}, {"model.layers.2."});  // at once, at the first missing
  expect_config_refused({{"rms_norm_eps", "small"}}, {"rms_norm_eps", "small"});
  expect_config_refused({{"rms_norm_eps", 1e308}}, {"rms_norm_eps", "1e+308", "at most 1"});
  expect_config_refused({{"rms_norm_eps", 0}}, {"rms_norm_eps", "0"});
  expect_config_refused({{"tie_word_embeddings", 1}}, {"tie_word_embeddings"});
  dir_.write("config.json", "{");
  expect_refused({"config.json", "JSON"});
  fs::remove(dir_ / "config.json");
  expect_refused({"config.json", "No such file"});
}

TEST_F(BadGpt2, ConfigsOfOtherModelsAreRefusedByName) {
  expect_config_refused({{"activation_function", "relu"}}, {"activation_function", "relu", "gelu_new"});
  expect_config_refused({{"scale_attn_by_inverse_layer_idx", true}}, {"scale_attn_by_inverse_layer_idx"});
  expect_config_refused({{"n_head", 5}}, {"n_embd", "24", "5"});
  expect_config_refused({{"n_layer", 1}}, {"model.safetensors", "\"h.1.attn.c_attn.bias\""});
  expect_config_refused({{"n_layer", 3}}, {"h.2."});
  expect_config_refused({{"n_inner", 48}}, {"model.safetensors", "h.0.mlp.c_fc.weight", "[24,40]", "[24,48]"});
}

TEST_F(BadHuggingFace, FilesThatAreNotThereAreNamed) {
  fs::remove(dir_ / "model-00002-of-00003.safetensors");
  expect_refused({"model.safetensors.index.json", "model-00002-of-00003.safetensors", "not there"});
  fs::remove(dir_ / "model.safetensors.index.json");
  expect_refused({"model.safetensors", "index"});
  dir_.write("pytorch_model.bin", "x");
  expect_refused({"pytorch_model.bin", "safetensors"});
}

TEST_F(BadHuggingFace, TheIndexStaysInTheDirectory) {
  const json index = read("model.safetensors.index.json");
  for (const char* name : {"../model.safetensors", "/etc/passwd", "..", "", "sub/model.safetensors"}) {
    json bad = index;
    bad["weight_map"]["model.norm.weight"] = name;
    dir_.write("model.safetensors.index.json", bad.dump());
    expect_refused({"index.json", "\"model.norm.weight\"", "beside the index"});
  }
  json bad = index;
  bad["weight_map"]["model.norm.weight"] = 3;
  dir_.write("model.safetensors.index.json", bad.dump());
  expect_refused({"\"model.norm.weight\"", "3"});
  bad.erase("weight_map");
  dir_.write("model.safetensors.index.json", bad.dump());
  expect_refused({"weight_map"});
}

TEST_F(BadHuggingFace, F167_TheIndexAndTheFilesMustAgree) {
  const json index = read("model.safetensors.index.json");
  json bad = index;
  bad["weight_map"].erase("model.norm.weight");
  dir_.write("model.safetensors.index.json", bad.dump());
  expect_refused({"\"model.norm.weight\"", "nothing"});
  bad = index;
  bad["weight_map"]["model.layers.7.mlp.up_proj.weight"] = "model-00001-of-00003.safetensors";
  dir_.write("model.safetensors.index.json", bad.dump());
  expect_refused({"model.layers.7.mlp.up_proj.weight", "model-00001-of-00003.safetensors", "does not hold"});
}

TEST_F(BadHuggingFace, TruncatedFilesAreNamed) {
  fs::resize_file(dir_ / "model-00003-of-00003.safetensors", 6000);
  expect_refused({"model-00003-of-00003.safetensors", "truncated"});
}

TEST_F(BadGpt2, TensorsMustBeThoseOfTheModel) {
  const auto named = [](std::vector<TensorBytes>& tensors, std::string_view name) {
    return std::find_if(tensors.begin(), tensors.end(), [&](const TensorBytes& t) { return t.name == name; });
  };
  const auto changed = [&](auto&& change, std::initializer_list<std::string_view> parts) {
    const std::string whole = dir_.read("model.safetensors");
    rewrite("model.safetensors", change);
    expect_refused(parts);
    dir_.write("model.safetensors", whole);
  };
  changed([&](auto& t) { t.erase(named(t, "h.1.ln_2.bias")); }, {"transformer.h.1.ln_2.bias"});
  changed([&](auto& t) { named(t, "h.1.ln_2.bias")->name = "h.1.ln_3.bias"; }, {"ln_2.bias"});
  changed([&](auto& t) { t.push_back({{"h.0.attn.extra", DType::u8, {0}}, {}}); }, {"h.0.attn.extra", "does not have"});
  changed([&](auto& t) { named(t, "h.0.attn.c_attn.weight")->shape = {72, 24}; },
          {"model.safetensors", "h.0.attn.c_attn.weight", "[72,24]", "[24,72]"});
  changed([&](auto& t) { named(t, "ln_f.bias")->dtype = DType::boolean, named(t, "ln_f.bias")->shape = {48}; },
          {"ln_f.bias", "[48]"});
  // The mask is not read, whatever it is.
  rewrite("model.safetensors", [&](auto& t) { t.erase(named(t, "h.0.attn.bias")); });
  EXPECT_NO_THROW(HuggingFaceWeights weights(dir_.path()));
}

TEST_F(BadGpt2, ATiedHeadThatDiffersIsRefused) {
  const std::string other(67 * 24 * 2, 'x');
  rewrite("model.safetensors", [&](std::vector<TensorBytes>& tensors) {
    for (TensorBytes& t : tensors)
      if (t.name == "lm_head.weight") t.bytes = std::as_bytes(std::span(other));
  });
  const HuggingFaceWeights weights(dir_.path());
  expect_error([&] { loaded(weights); }, {"lm_head.weight", "wte.weight", "tie_word_embeddings"});
}

class TiedHead : public BadHuggingFace {
 protected:
  TiedHead() : BadHuggingFace("llama_tied") {}
};

// As transformers 5 loads it: a file may hold either of two that are tied.
TEST_F(TiedHead, AloneIsTheEmbedding) {
  rewrite("model.safetensors", [](std::vector<TensorBytes>& tensors) {
    for (TensorBytes& tensor : tensors)
      if (tensor.name == "model.embed_tokens.weight") tensor.name = "lm_head.weight";
  });
  const auto whole = loaded(HuggingFaceWeights(directory_of("llama_tied"))),
             head = loaded(HuggingFaceWeights(dir_.path()));
  for (const auto& [name, parameter] : whole->named_parameters())
    EXPECT_TRUE(same_bits(parameter->value(), head->parameter(name).value())) << name;
}

TEST_F(TiedHead, AloneIsNoEmbeddingOfAModelThatDoesNotTieIt) {
  rewrite("model.safetensors", [](std::vector<TensorBytes>& tensors) {
    for (TensorBytes& tensor : tensors)
      if (tensor.name == "model.embed_tokens.weight") tensor.name = "lm_head.weight";
  });
  json config = read("config.json");
  config["tie_word_embeddings"] = false;
  dir_.write("config.json", config.dump());
  expect_refused({"lacks the tensor \"model.embed_tokens.weight\""});
}

// The last bytes of the file are the last rows of one tensor: only the rank that holds them reads them.
TEST(HuggingFaceShards, EveryRankReadsItsOwnRowsOnly) {
  TempDir dir;
  fs::copy(directory_of("llama_tied"), dir.path(), fs::copy_options::recursive);
  const std::string path = dir / "model.safetensors";
  const HuggingFaceWeights weights(dir.path());
  fs::resize_file(path, fs::file_size(path) - 2);
  run_ranks(2, [&](const Group& group) {
    auto model = make_language_model(weights.config());
    fully_shard(*model, DeviceMesh(group));
    model->materialize();
    if (group->rank() == 0) EXPECT_NO_THROW(weights.load(*model));
    else expect_error([&] { weights.load(*model); }, {"model.safetensors", "cut short", "model.norm.weight"});
  });
}

// Rank 1 finds its file cut short when it has read most of it: part of its model is the directory's then.
TEST(HuggingFaceShards, WhatALoadHasLeftHalfDoneIsTornUntilTheNextOne) {
  TempDir dir;
  fs::copy(directory_of("llama_tied"), dir.path(), fs::copy_options::recursive);
  const std::string path = dir / "model.safetensors";
  run_ranks(2, [&](const Group& group) {
    const HuggingFaceWeights weights(directory_of("llama_tied")), cut(dir.path());
    group->host().barrier();
    if (group->rank() == 0) fs::resize_file(path, fs::file_size(path) - 2);
    group->host().barrier();
    auto model = make_language_model(weights.config());
    fully_shard(*model, DeviceMesh(group));
    model->materialize();
    Sgd optimizer(model->parameters(), {.lr = 0.1});
    const auto save = [&](const std::string& name) { save_huggingface(dir / name, weights.config(), *model, *group); };
    const auto load_cut = [&] { cut.load(*model); };
    if (group->rank() == 0) load_cut();
    else expect_error(load_cut, {"cut short"});
    expect_error([&] { save("torn"); }, {"is torn and not saved", "a load has failed", "cut short"});
    if (group->rank() == 1) expect_error([&] { optimizer.step(); }, {"refused", "torn", "cut short"});
    weights.load(*model);
    EXPECT_EQ(optimizer.torn(), "");
    save("whole");
    model->parameter("tok.weight").mark_torn("a step was left");
    expect_error([&] { save("torn"); }, {"\"tok.weight\"", "is torn and not saved: a step was left"});
    weights.load(*model);
    optimizer.step();
  });
  EXPECT_FALSE(fs::exists(dir / "torn"));
  EXPECT_TRUE(fs::exists(dir / "whole"));
}

TEST(HuggingFaceShards, GhostRanksHaveNoBytesForWeightsAndNoneToSave) {
  TempDir dir;
  const HuggingFaceWeights weights(directory_of("gpt2"));
  const RankScope rank("", {.ghost = true});
  const auto model = make_language_model(weights.config());
  model->materialize();
  expect_error([&] { weights.load(*model); }, {weights.dir(), "this rank is a ghost"});
  expect_error([&] { save_huggingface(dir / "new", weights.config(), *model, *make_single_group()); },
               {dir / "new", "this rank is a ghost"});
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

// Zeros are the same function, and theirs has no other form. On two ranks, whose shards cut each row of weights.
TEST(HuggingFaceSave, AGptWithoutBiasesIsWrittenWithZeros) {
  TempDir dir;
  const Gpt::Config config{
      .vocabulary = 29, .tokens = 12, .layers = 2, .heads = 2, .width = 16, .hidden = 40, .bias = false};
  const std::vector<std::int32_t> ids{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
  const Tensor tokens = Tensor::from<std::int32_t>(ids, {1, 12});
  Tensor expected;
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](const Group& group) {
      GradMode off(false);
      const auto model = make_language_model(config);
      if (ranks > 1) fully_shard(*model, DeviceMesh(group));
      model->materialize(Seed{5});
      for (const auto& [name, parameter] : model->named_parameters()) EXPECT_FALSE(name.ends_with(".bias")) << name;
      save_huggingface(dir / fmt::format("new-{}", ranks), config, *model, *group, {.max_file_bytes = 5000});
      if (ranks == 1) expected = (*model)(tokens, Tensor());
    });
  expect_equal_directories(dir / "new-2", dir / "new-1");
  const HuggingFaceWeights written(dir / "new-1");
  EXPECT_TRUE(std::get<Gpt::Config>(written.config()).bias);
  const auto again = loaded(written);
  std::int64_t biases = 0;
  for (const auto& [name, parameter] : again->named_parameters()) {
    if (!name.ends_with(".bias")) continue;
    for (const float value : parameter->value().to_vector<float>()) EXPECT_EQ(value, 0) << name;
    biases += parameter->numel();
  }
  EXPECT_EQ(biases, 2 * (2 * 16 + 3 * 16 + 16 + 40 + 16) + 16) << "norms, qkv, out, up, down; the last norm";
  EXPECT_TRUE(near((*again)(tokens, Tensor()), expected, 1e-6));
}

TEST(HuggingFaceSave, RefusesWhatItCannotWriteOnEveryRank) {
  TempDir dir;
  const HuggingFaceWeights weights(directory_of("gpt2"));
  dir.write("full/file", "x");
  dir.write("file", "x");
  run_ranks(2, [&](const Group& group) {
    const auto model = loaded(weights);
    const auto save = [&](const std::string& name, const LanguageModelConfig& config,
                          const HuggingFaceWeights::SaveOptions& o) {
      save_huggingface(dir / name, config, *model, *group, o);
    };
    expect_error([&] { save("full", weights.config(), {}); }, {"full", "not an empty folder"});
    expect_error([&] { save("file", weights.config(), {}); }, {"file", "not an empty folder"});
    expect_error([&] { save("file/below", weights.config(), {}); }, {"file/below", "cannot make"});
    expect_error([&] { save("new", weights.config(), {.dtype = DType::f64}); }, {"f64", "bf16"});
    auto other = std::get<Gpt::Config>(weights.config());
    other.tanh_gelu = false;
    expect_error([&] { save("new", other, {.like = &weights}); }, {"gpt2", "\"activation_function\": \"gelu\""});
    save("new", weights.config(), {.dtype = DType::bf16});
  });
  EXPECT_FALSE(fs::exists(dir / "new.partial"));
  EXPECT_EQ(json::parse(dir.read("new/config.json"))["torch_dtype"], "bfloat16");
  EXPECT_EQ(SafetensorsFile::open(dir / "new/model.safetensors").at("transformer.wte.weight").dtype, DType::bf16);
}

}  // namespace
}  // namespace sherd::nn
