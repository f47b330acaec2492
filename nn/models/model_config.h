#pragma once
// Any of the models, chosen at run time by the type of its config.
#include <memory>
#include <variant>

#include "nn/models/gpt.h"
#include "nn/models/llama.h"

namespace sherd::nn {

using LanguageModelConfig = std::variant<GptConfig, LlamaConfig>;

/// On the meta device; materialize() gives it bytes.
std::unique_ptr<LanguageModel> make_language_model(const LanguageModelConfig& config);

}  // namespace sherd::nn
