#pragma once
// A training run that takes milliseconds: its text, its config, and what it leaves, on any number of thread-ranks.
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "dtensor/api.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tools/train/trainer.h"

namespace sherd::testing {

using namespace train;

/// 4803 characters, 29 of them distinct, that a small model can learn something of.
inline std::string tiny_text() {
  std::string text;
  for (int line = 0; line < 110; ++line)
    text += line % 3 == 0 ? "the quick brown fox jumps over a lazy dog;\n"
                          : "pack my box with five dozen liquor jugs; ok\n";
  return text;
}

/// Tokens of its vocabulary.
inline constexpr std::int64_t kTinyVocabulary = 29;

/// A GPT of 2 blocks over `data`. The batch divides by 1, 2, 3, 4 and 6.
inline TrainConfig tiny_config(const std::string& data) {
  TrainConfig config;
  config.data = data;
  config.vocabulary = "chars";
  config.seed = 7;
  config.steps = 5;
  config.batch = 12;
  config.threads = 1;
  config.eval_batches = 1;
  config.model.style = "gpt2";
  config.model.layers = 2;
  config.model.heads = 2;
  config.model.width = 16;
  config.model.sequence = 12;
  config.model.tied_head = true;
  config.model.bias = true;
  config.optimizer.lr = 1e-2;
  config.optimizer.min_lr = 1e-3;
  config.optimizer.warmup = 2;
  config.optimizer.decay_steps = 20;
  resolve(config);
  return config;
}

inline TrainConfig tiny_llama(const std::string& data) {
  TrainConfig config = tiny_config(data);
  config.model.style = "llama";
  config.model.bias = false;
  config.model.kv_heads = 1;
  config.model.tied_head = false;
  config.model.hidden = 20;
  resolve(config);
  return config;
}

using Values = std::map<std::string, std::vector<float>>;

/// Every parameter, unsharded. Collective.
inline Values values_of(nn::Module& model) {
  Values values;
  for (const auto& [name, p] : model.named_parameters()) {
    const Tensor& value = p->value();
    values[name] = (value.is_distributed() ? full_tensor(value) : value).to_vector<float>();
  }
  return values;
}

/// As rank 0 saw it; the other ranks must have seen the same losses.
struct TinyRun {
  std::vector<double> losses, norms;
  double val_loss = 0;
  std::int64_t peak_activations = 0;  ///< bytes, of all steps
  Values initial, final;
};

/// Trains `config` on `ranks` thread-ranks. `before` runs on every rank between construction and training.
inline TinyRun train_tiny(const TrainConfig& config, int ranks, const std::function<void(Trainer&)>& before = {}) {
  TinyRun result;
  std::mutex mutex;
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    Trainer trainer(config, group);
    TinyRun own;
    own.initial = values_of(trainer.model());
    if (before) before(trainer);
    const TrainSummary summary = trainer.run([&](const StepMetrics& metrics) {
      own.losses.push_back(metrics.loss);
      own.norms.push_back(metrics.grad_norm);
    });
    own.val_loss = summary.val_loss.value_or(0);
    own.peak_activations = summary.peak_bytes[static_cast<std::size_t>(MemoryCategory::activations)];
    own.final = values_of(trainer.model());
    const std::lock_guard lock(mutex);
    losses[static_cast<std::size_t>(group->rank())] = own.losses;
    if (group->rank() == 0) result = std::move(own);
  });
  for (const auto& other : losses) EXPECT_EQ(other, result.losses) << "ranks report different losses";
  return result;
}

}  // namespace sherd::testing
