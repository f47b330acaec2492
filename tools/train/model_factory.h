#pragma once
#include <memory>

#include "nn/models/model_config.h"
#include "tools/train/config.h"

namespace sherd::train {

/// The model that a section describes. Its vocabulary is the section's, or `data_vocabulary` if that says 0; Error if
/// it is smaller than `data_vocabulary`.
nn::LanguageModelConfig model_config(const TrainConfig::Model& section, std::int64_t data_vocabulary);
/// The section of such a model, complete; what only training needs (sequence, initial values, dropout) is at its
/// default, sequence at most positions.
TrainConfig::Model model_section(const nn::LanguageModelConfig& config);

/// make_language_model of model_config().
std::unique_ptr<nn::LanguageModel> make_model(const TrainConfig::Model& section, std::int64_t data_vocabulary);

}  // namespace sherd::train
