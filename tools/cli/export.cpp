// `sherd export DIR OUT [--dtype f32]`: a checkpoint or a Hugging Face directory as a Hugging Face directory, on one
// rank.
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "nn/interop/huggingface_config.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/memory/accounting.h"
#include "tools/cli/command.h"
#include "tools/train/exit_status.h"
#include "tools/train/flags.h"
#include "tools/train/weights.h"

namespace sherd {

namespace {

bool lacks_biases(const nn::LanguageModelConfig& config) {
  const auto* const gpt = std::get_if<nn::Gpt::Config>(&config);
  return gpt != nullptr && !gpt->bias;
}

/// Says what lies in `dir` now, as it reads.
void print_written(const std::string& dir, const nn::LanguageModelConfig& config, std::int64_t parameters) {
  const nn::HuggingFaceWeights written(dir);  // throws unless it is whole
  std::set<std::string> dtypes, files;
  std::int64_t bytes = 0;
  for (const ckpt::SafetensorsFile& file : files_of(written))
    for (const ckpt::TensorEntry& tensor : file.tensors()) {
      dtypes.insert(std::string(name(tensor.dtype)));
      bytes += tensor.bytes;
    }
  for (const auto& entry : std::filesystem::directory_iterator(dir)) files.insert(entry.path().filename().string());
  fmt::print("wrote {}: {}, {} parameters{}, {}, {}\n  {}\n", dir, nn::huggingface_architecture(config), parameters,
             lacks_biases(config) ? " (and zeros for the biases it lacks)" : "", fmt::join(dtypes, ", "),
             format_bytes(bytes), fmt::join(files, ", "));
}

}  // namespace

int run_export(std::span<const std::string_view> args) {
  nn::HuggingFaceWeights::SaveOptions options;
  std::optional<DType> dtype;
  ConfigTable table;
  table.add("dtype", text_field(dtype), "f32, bf16 or f16; empty: as in DIR");
  table.add("max_file_bytes", ByteField{&options.max_file_bytes}, "more is written as several files and an index");
  const auto words =
      read_command_line(table, args, "sherd export DIR OUT [flags]: writes a model as a Hugging Face directory");
  if (!words) return 0;
  check_usage(words->size() == 2, "sherd export takes two folders, from and to, got {} words", words->size());
  check_usage(options.max_file_bytes > 0, "--max-file-bytes must be positive, got {}", options.max_file_bytes);
  check_one_rank("sherd export");

  const Weights weights((*words)[0]);
  const auto model = weights.make_loaded();
  if (dtype) options.dtype = *dtype;
  else options.like = weights.huggingface();
  nn::save_huggingface((*words)[1], weights.config(), *model, *make_single_group(), options);
  print_written((*words)[1], weights.config(), model->num_parameters());
  return 0;
}

}  // namespace sherd
