#pragma once
// Any of the models, chosen at run time by the type of its config.
#include <memory>
#include <variant>

#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "nn/models/plan_options.h"

namespace sherd::nn {

using LanguageModelConfig = std::variant<Gpt::Config, Llama::Config>;

/// On the meta device; materialize() gives it values.
std::unique_ptr<LanguageModel> make_language_model(const LanguageModelConfig& config);
/// Its plan for parallelize().
Plan make_plan(const LanguageModelConfig& config, const TensorParallelOptions& options = {});

}  // namespace sherd::nn
