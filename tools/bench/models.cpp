#include "tools/bench/models.h"

#include <array>
#include <string>
#include <vector>

#include "runtime/tensor/error.h"
#include "runtime/tensor/nearest.h"
#include "tools/train/model_factory.h"

namespace sherd::bench {

namespace {
constexpr std::array kModels = {
    BenchModel{"tiny", 1, 2, 16, 8, 2, 17},
    BenchModel{"mini", 4, 4, 128, 64, 12, 65},
    BenchModel{"bigger", 6, 6, 384, 256, 8, 256},
    BenchModel{"bigger8", 8, 6, 384, 256, 8, 256},
    BenchModel{"blocks16", 16, 4, 256, 128, 4, 256},
    BenchModel{"gpt124m", 12, 12, 768, 256, 4, 50257},
    BenchModel{"tiny_llama", 1, 2, 16, 8, 2, 17, 1, 32},
    BenchModel{"llama1b", 16, 16, 2048, 4096, 4, 128256, 4, 8192},
    BenchModel{"llama8b", 32, 32, 4096, 8192, 1, 128256, 8, 14336},
};
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
  fail("there is no benchmark model \"{}\"{}", name, did_you_mean(name, names));
}

const BenchModel& sized_model(std::string_view name, bool smoke) {
  const BenchModel& full = bench_model(name);
  return !smoke ? full : bench_model(full.is_llama() ? "tiny_llama" : "tiny");
}

TrainConfig::Model model_section(const BenchModel& m) {
  TrainConfig::Model section;
  section.style = m.is_llama() ? "llama" : "gpt2";
  section.layers = m.layers;
  section.heads = m.heads;
  section.kv_heads = m.kv_heads;
  section.width = m.width;
  section.hidden = m.hidden;
  section.sequence = m.tokens;
  section.vocabulary = m.vocabulary;
  section.bias = !m.is_llama();
  section.gelu = "tanh";
  section.tied_head = !m.is_llama();
  section.rope_theta = 500000;
  section.scaled_residual_init = false;
  return section;
}

std::unique_ptr<nn::LanguageModel> make_bench_model(const BenchModel& m) {
  return make_model(model_section(m), m.vocabulary);
}

}  // namespace sherd::bench
