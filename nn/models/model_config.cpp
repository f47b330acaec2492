#include "nn/models/model_config.h"

namespace sherd::nn {

namespace {
std::unique_ptr<LanguageModel> make(const GptConfig& config) { return std::make_unique<Gpt>(config); }
std::unique_ptr<LanguageModel> make(const LlamaConfig& config) { return std::make_unique<Llama>(config); }
}  // namespace

std::unique_ptr<LanguageModel> make_language_model(const LanguageModelConfig& config) {
  return std::visit([](const auto& c) { return make(c); }, config);
}

}  // namespace sherd::nn
