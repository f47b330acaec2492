#include "tools/bench/models.h"

#include <array>
#include <string>
#include <vector>

#include "nn/models/gpt.h"
#include "nn/models/gpt_plan.h"
#include "nn/models/llama.h"
#include "nn/models/llama_plan.h"
#include "runtime/tensor/nearest.h"

namespace sherd::bench {

namespace {
constexpr std::array kModels = {
    BenchModel{"tiny", 1, 2, 16, 8, 2, 17},
    BenchModel{"mini", 4, 4, 128, 64, 12, 65},
    BenchModel{"bigger", 6, 6, 384, 256, 8, 256},
    BenchModel{"blocks16", 16, 4, 256, 128, 4, 256},
    BenchModel{"gpt124m", 12, 12, 768, 256, 4, 50257},
    BenchModel{"tiny_llama", 1, 2, 16, 8, 2, 17, 1, 32},
    BenchModel{"llama1b", 16, 16, 2048, 4096, 4, 128256, 4, 8192},
};

nn::LlamaConfig llama_config(const BenchModel& m) {
  nn::LlamaConfig config;
  config.vocabulary = m.vocabulary;
  config.tokens = m.tokens;
  config.layers = m.layers;
  config.heads = m.heads;
  config.kv_heads = m.kv_heads;
  config.width = m.width;
  config.hidden = m.hidden;
  config.rope_theta = 500000;
  config.scaled_residual_init = false;
  return config;
}

nn::GptConfig gpt_config(const BenchModel& m) {
  nn::GptConfig config;
  config.vocabulary = m.vocabulary;
  config.tokens = m.tokens;
  config.layers = m.layers;
  config.heads = m.heads;
  config.width = m.width;
  config.gelu = GeluKind::tanh;
  config.scaled_residual_init = false;
  return config;
}
}  // namespace

std::int64_t BenchModel::num_parameters() const {
  const std::int64_t attention = 2 * width * width + 2 * width * width / heads * kv_heads;
  const std::int64_t block = is_llama() ? attention + 3 * width * hidden + 2 * width
                                        : 4 * (width * width + width) + (8 * width * width + 5 * width) + 4 * width;
  return layers * block + num_root_parameters();
}

std::int64_t BenchModel::num_root_parameters() const {
  return is_llama() ? 2 * vocabulary * width + width : (vocabulary + tokens) * width + 2 * width;
}

double BenchModel::step_flops() const {
  const std::int64_t multiplied = num_parameters() - (is_llama() ? vocabulary * width : 0);
  const auto per_token = static_cast<double>(6 * multiplied + 6 * layers * tokens * width);
  return static_cast<double>(tokens_per_step()) * per_token;
}

const BenchModel& bench_model(std::string_view name) {
  std::vector<std::string> names;
  for (const BenchModel& model : kModels) {
    if (model.name == name) return model;
    names.emplace_back(model.name);
  }
  fail("there is no benchmark model \"{}\"; did you mean {}?", name, nearest(name, names));
}

std::unique_ptr<nn::LanguageModel> make_bench_model(const BenchModel& m) {
  if (m.is_llama()) return std::make_unique<nn::Llama>(llama_config(m));
  return std::make_unique<nn::Gpt>(gpt_config(m));
}

nn::Plan bench_plan(const BenchModel& m) {
  const nn::TensorParallelOptions options{.sequence_parallel = true};
  return m.is_llama() ? nn::llama_plan(llama_config(m), options) : nn::gpt_plan(gpt_config(m), options);
}

}  // namespace sherd::bench
