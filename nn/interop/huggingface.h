#pragma once
// Weights of Hugging Face directories: config.json beside model.safetensors, or beside many files and their index.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nn/checkpoint/format/safetensors.h"
#include "nn/models/model_config.h"
#include "runtime/comm/group/process_group.h"

namespace sherd::nn {

/// A directory opened for reading: GPT2LMHeadModel or LlamaForCausalLM, tensors of f32, bf16 or f16.
class HuggingFaceWeights {
 public:
  /// How save_huggingface() writes.
  struct SaveOptions {
    DType dtype = DType::f32;
    /// Files, names, dtypes, metadata, config.json and index as in this directory, which must be of an equal model;
    /// tensors that hold no weights are copied from it. A model whose weights have not changed gives the same files.
    /// `dtype` and `max_file_bytes` do not count then.
    const HuggingFaceWeights* like = nullptr;
    /// More than this is written as several files and an index.
    std::int64_t max_file_bytes = 5'000'000'000;
  };

  /// Whether `dir` has a config.json, which tells such a directory from a checkpoint.
  static bool is_at(const std::string& dir);

  /// Reads config.json, the index and the headers of all files, and checks that they are this model: every tensor there
  /// once with its shape, none beyond them but those that the name table ignores. Throws Error naming file and tensor.
  explicit HuggingFaceWeights(std::string dir);
  HuggingFaceWeights(HuggingFaceWeights&&) = default;
  HuggingFaceWeights(const HuggingFaceWeights&) = delete;

  const std::string& dir() const { return dir_; }
  const LanguageModelConfig& config() const { return config_; }
  /// config.json and, empty without one, model.safetensors.index.json as they are.
  const std::string& config_text() const { return config_text_; }
  const std::string& index_text() const { return index_text_; }

  /// Fills `model`, made from config() and allocated, each rank reading only its own rows; values are cast to the
  /// parameters' dtype. Local: wrap in together() when ranks must agree. Throws Error naming file and tensor (truncated
  /// meanwhile; a tied head that differs from the embedding), and parameters that have new values then are torn, until
  /// a load that succeeds; on a ghost rank, which has no bytes to read into.
  void load(LanguageModel& model) const;

 private:
  /// In the order of their names: for saves like these (HuggingFaceWeights::SaveOptions::like).
  friend const std::vector<ckpt::SafetensorsFile>& files_of(const HuggingFaceWeights& weights) {
    return weights.files_;
  }
  struct Stored {
    const ckpt::SafetensorsFile* file = nullptr;
    const ckpt::TensorEntry* entry = nullptr;
  };
  /// Where one of our parameters is stored: rows first_row ... of a tensor, which may be transposed.
  struct Source {
    Stored stored;
    Shape shape;
    std::int64_t first_row = 0;
    bool transposed = false;
  };
  /// A stored tensor and the parameters that are stacked in it.
  struct Match {
    Stored stored;
    std::vector<std::string> ours;
    bool transposed = false;
  };
  void open_files();
  const Stored* find_stored(std::string_view name) const;
  std::vector<Match> match_names();
  void match_shapes(const std::vector<Match>& matches);
  Tensor read_rows(const Source& source, std::int64_t row, std::int64_t count) const;
  void load(const std::string& name, const Source& source, Parameter& parameter) const;
  void check_tied_head(const Source& embedding, std::int64_t row, std::int64_t count) const;

  std::string dir_, config_text_, index_text_;
  LanguageModelConfig config_;
  std::vector<ckpt::SafetensorsFile> files_;
  bool has_prefix_ = true;
  std::map<std::string, Stored, std::less<>> stored_;   // by the name in the files
  std::map<std::string, Source, std::less<>> sources_;  // by the name of our parameter
  std::optional<Source> tied_head_;                     // stored although it is tied
};

/// Writes `model`, made from `config`, as a directory that transformers and HuggingFaceWeights read. Collective:
/// tensors are gathered one after the other and rank 0 writes; blocks on the disk. `dir` appears by rename once it is
/// complete. A GPT-2 without biases gets zeros for them: the same function. On failure (disk full, `dir` exists and is
/// not empty) every rank throws Error, and if a step or a load was left while it changed a parameter and nothing was
/// loaded since. So does a ghost rank.
void save_huggingface(const std::string& dir, const LanguageModelConfig& config, LanguageModel& model,
                      ProcessGroup& group, const HuggingFaceWeights::SaveOptions& options = {});

}  // namespace sherd::nn
