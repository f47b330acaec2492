#pragma once
#include <memory>

#include "nn/models/language_model.h"
#include "tools/config.h"

namespace sherd {

/// The model a config describes, on the meta device, for a vocabulary of `vocabulary` tokens.
std::unique_ptr<nn::LanguageModel> make_model(const TrainConfig::Model& config, std::int64_t vocabulary);

}  // namespace sherd
