#pragma once
// The benchmark's language models, tools/configs/bench: init normal 0.02. GPTs: learned positions, pre-norm, tanh GELU,
// tied head, biases. Llamas: rotary positions, RMS norm, grouped queries, SwiGLU, a head of their own.
#include <cstdint>
#include <memory>
#include <string>

#include "nn/models/language_model.h"
#include "tools/train/config.h"

namespace sherd::bench {

using namespace train;

struct BenchModel : TrainConfig::Model {
  std::string name{};
  std::int64_t batch = 0;

  std::int64_t tokens_per_step() const { return batch * sequence; }
  /// Operations of a training step of one rank: tokens x (6 N + 6 x layers x T x width), the causal half of attention.
  /// N counts the tied matrix once, and no matrix that is only looked up in.
  double step_flops() const;
};

/// Reads it. Error naming the nearest of those there are.
BenchModel bench_model(const std::string& name);
/// The tiny one of its kind in a smoke run.
BenchModel sized_model(const std::string& name, bool smoke);
/// On the meta device.
std::unique_ptr<nn::LanguageModel> make_bench_model(const BenchModel& model);

}  // namespace sherd::bench
