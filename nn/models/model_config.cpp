#include "nn/models/model_config.h"

#include "nn/models/gpt_plan.h"
#include "nn/models/llama_plan.h"

namespace sherd::nn {

namespace {
std::unique_ptr<LanguageModel> make(const Gpt::Config& config) { return std::make_unique<Gpt>(config); }
std::unique_ptr<LanguageModel> make(const Llama::Config& config) { return std::make_unique<Llama>(config); }
Plan plan_of(const Gpt::Config& config, const TensorParallelOptions& options) { return gpt_plan(config, options); }
Plan plan_of(const Llama::Config& config, const TensorParallelOptions& options) { return llama_plan(config, options); }
}  // namespace

std::unique_ptr<LanguageModel> make_language_model(const LanguageModelConfig& config) {
  return std::visit([](const auto& c) { return make(c); }, config);
}

Plan make_plan(const LanguageModelConfig& config, const TensorParallelOptions& options) {
  return std::visit([&](const auto& c) { return plan_of(c, options); }, config);
}

}  // namespace sherd::nn
