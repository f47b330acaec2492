#include "tools/bench/models.h"

#include <array>
#include <string>
#include <vector>

#include "nn/models/gpt.h"
#include "runtime/tensor/nearest.h"

namespace sherd::bench {

namespace {
constexpr std::array kModels = {
    BenchModel{"tiny", 1, 2, 16, 8, 2, 17},
    BenchModel{"mini", 4, 4, 128, 64, 12, 65},
    BenchModel{"bigger", 6, 6, 384, 256, 8, 256},
    BenchModel{"blocks16", 16, 4, 256, 128, 4, 256},
};
}  // namespace

std::int64_t BenchModel::num_parameters() const {
  const std::int64_t block = 4 * (width * width + width) + (8 * width * width + 5 * width) + 4 * width;
  return layers * block + num_root_parameters();
}

double BenchModel::step_flops() const {
  const auto per_token = static_cast<double>(6 * num_parameters() + 6 * layers * tokens * width);
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
  nn::GptConfig config;
  config.vocabulary = m.vocabulary;
  config.tokens = m.tokens;
  config.layers = m.layers;
  config.heads = m.heads;
  config.width = m.width;
  config.gelu = GeluKind::tanh;
  config.scaled_residual_init = false;
  return std::make_unique<nn::Gpt>(config);
}

}  // namespace sherd::bench
