// `sherd export DIR OUT [--dtype f32]`: a checkpoint or a Hugging Face directory as a Hugging Face directory, on one
// rank.

#include "runtime/comm/group/process_group.h"
#include "tools/cli/command.h"
#include "tools/train/exit_status.h"
#include "tools/train/flags.h"
#include "tools/train/weights.h"

namespace sherd {

int run_export(std::span<const std::string_view> args) {
  std::string dtype;
  std::int64_t max_file_bytes = nn::HuggingFaceSaveOptions{}.max_file_bytes;
  ConfigTable table;
  table.add("dtype", &dtype, "f32, bf16 or f16; empty: as in DIR");
  table.add("max_file_bytes", &max_file_bytes, "more is written as several files and an index");
  const auto words =
      read_command_line(table, args, "sherd export DIR OUT [flags]: writes a model as a Hugging Face directory");
  if (!words) return 0;
  check_usage(words->size() == 2, "sherd export takes two folders, from and to, got {} words", words->size());
  check_usage(max_file_bytes > 0, "--max-file-bytes must be positive, got {}", max_file_bytes);
  nn::HuggingFaceSaveOptions options{.max_file_bytes = max_file_bytes};
  if (!dtype.empty()) options.dtype = as_usage([&] { return dtype_from_name(dtype); });

  const Weights weights((*words)[0]);
  const auto model = nn::make_language_model(weights.config());
  model->allocate();
  weights.load(*model);
  if (dtype.empty()) options.like = weights.huggingface();
  nn::save_huggingface((*words)[1], weights.config(), *model, *make_single_group(), options);
  return 0;
}

}  // namespace sherd
