#pragma once
// The benchmark's language models, init normal 0.02. GPTs: learned positions, pre-norm, tanh GELU, tied head, biases.
// Llamas: rotary positions, RMS norm, grouped queries, SwiGLU, a head of their own.
#include <cstdint>
#include <memory>
#include <string_view>

#include "nn/models/language_model.h"
#include "tools/train/config.h"

namespace sherd::bench {

struct BenchModel {
  std::string_view name;
  std::int64_t layers, heads, width, tokens, batch, vocabulary;
  std::int64_t kv_heads = 0, hidden = 0;  ///< of a Llama

  bool is_llama() const { return kv_heads > 0; }
  std::int64_t tokens_per_step() const { return batch * tokens; }
  /// Operations of a training step of one rank: tokens x (6 N + 6 x layers x T x width), the causal half of attention.
  /// N counts the tied matrix once, and no matrix that is only looked up in.
  double step_flops() const;
  std::int64_t num_parameters() const;
  /// Outside of blocks: the embeddings, the last norm, a head of its own.
  std::int64_t num_root_parameters() const;
};

/// Error naming the nearest of those in models.cpp.
const BenchModel& bench_model(std::string_view name);
/// The tiny one of its kind in a smoke run.
const BenchModel& sized_model(std::string_view name, bool smoke);
/// It as the [model] of a training run.
TrainConfig::Model model_section(const BenchModel& model);
/// On the meta device.
std::unique_ptr<nn::LanguageModel> make_bench_model(const BenchModel& model);

}  // namespace sherd::bench
