#include "tools/train/activation_flag.h"

#include <algorithm>
#include <filesystem>

#include "runtime/tensor/error.h"

namespace sherd {

ActivationChoice parse_offload_activations(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view what = text.substr(0, colon);
  ActivationChoice choice{.of_blocks = what == "blocks"};
  check(choice.of_blocks || what == "none", "offload_activations must be none, blocks or blocks:DIR, got \"{}\"", text);
  if (colon == text.npos) return choice;
  choice.folder = text.substr(colon + 1);
  check(choice.of_blocks, "offload_activations = {}: none needs no folder", text);
  check(!choice.folder.empty(), "offload_activations = {}: the folder after the colon is empty", text);
  return choice;
}

OffloadSavedOptions activation_options(const ActivationChoice& choice, Device device, std::int64_t memory_limit) {
  OffloadSavedOptions options;
  if (memory_limit > 0)
    options.bytes_in_flight =
        std::clamp<std::int64_t>(memory_limit / 8, 2 * options.least_bytes, options.bytes_in_flight);
  options.folder = choice.folder;
  if (device == Device::cpu() && choice.folder.empty())
    options.folder = std::filesystem::temp_directory_path().string();
  return options;
}

}  // namespace sherd
