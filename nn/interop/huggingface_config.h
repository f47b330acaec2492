#pragma once
// config.json of a Hugging Face directory, as the config of one of our models, and back.
#include <string>
#include <string_view>

#include "nn/models/model_config.h"
#include "runtime/tensor/dtype.h"

namespace sherd::nn {

/// GPT2LMHeadModel gives a Gpt::Config, LlamaForCausalLM a Llama::Config. What is left out has the value that
/// transformers gives it. Throws Error naming the key and its value: an unknown architecture or activation, a missing
/// or impossible size, and everything our models do not compute (rope_scaling, attention_bias, ...). Dropout and
/// initial values are matters of training and not read.
LanguageModelConfig config_from_huggingface(std::string_view text);

/// "GPT2LMHeadModel" or "LlamaForCausalLM".
std::string_view huggingface_architecture(const LanguageModelConfig& config);

/// The text of a config.json for such a model with tensors of `dtype`; equal models give equal text. Whether a GPT-2
/// has biases is not in it: theirs always have.
std::string config_to_huggingface(const LanguageModelConfig& config, DType dtype = DType::f32);

}  // namespace sherd::nn
