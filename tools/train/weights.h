#pragma once
// A trained model in a folder, whoever wrote it: what eval, export, sample and --init-from read.
#include <memory>
#include <optional>
#include <string>

#include "nn/checkpoint/training_state.h"
#include "nn/data/vocabulary.h"
#include "nn/interop/huggingface.h"
#include "tools/train/config.h"

namespace sherd::train {

/// A checkpoint of `sherd train` or a Hugging Face directory.
class Weights {
 public:
  /// Takes the newest good checkpoint of a folder, the same on all ranks; says on stderr if it is not the newest.
  /// Collective. Throws Error naming the file, on every rank.
  explicit Weights(const std::string& dir, ProcessGroup& group = *make_single_group(),
                   ckpt::Verify verify = ckpt::Verify::bytes);

  const std::string& dir() const { return dir_; }
  /// Complete: `vocabulary` and `positions` are not 0.
  const TrainConfig::Model& model() const { return model_; }
  nn::LanguageModelConfig config() const;
  /// What text the tokens stand for; neither a Hugging Face directory nor a checkpoint converted from one tells.
  const std::optional<Vocabulary>& vocabulary() const { return vocabulary_; }
  /// Null for a checkpoint.
  const nn::HuggingFaceWeights* huggingface() const { return huggingface_ ? &*huggingface_ : nullptr; }

  /// Fills an allocated model of config(), each rank its own rows. Local: wrap in together().
  void load(nn::LanguageModel& model) const;
  /// A model of config() on the device, filled so.
  std::unique_ptr<nn::LanguageModel> make_loaded(Device device = Device::cpu()) const;
  /// Error unless a model of `section` is this one; names the first key that differs and both values. Keys that matter
  /// to training only may differ.
  void check_fits(const TrainConfig::Model& section) const;

 private:
  std::string dir_;
  TrainConfig::Model model_;
  std::optional<Vocabulary> vocabulary_;
  std::optional<nn::HuggingFaceWeights> huggingface_;
  std::unique_ptr<ckpt::CheckpointReader> checkpoint_;
};

/// Error unless `checkpoint` holds the parameters of a model of `config`, by their names, dtypes and shapes. Takes no
/// memory for them, whatever the config says: to be called before anything is materialised. Local.
void check_parameters(const ckpt::CheckpointReader& checkpoint, const nn::LanguageModelConfig& config);

/// Gives the keys of [model] that `table` was not given the values they have in `weights`.
void take_model(const Weights& weights, ConfigTable& table);

}  // namespace sherd::train
