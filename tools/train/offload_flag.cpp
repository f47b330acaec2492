#include "tools/train/offload_flag.h"

#include <algorithm>
#include <filesystem>

#include "runtime/tensor/error.h"

namespace sherd {

OffloadChoice parse_offload(std::string_view text, std::int64_t kept) {
  const std::size_t colon = text.find(':');
  const std::string_view what = text.substr(0, colon);
  const bool all = what == "all";
  OffloadChoice choice{.optimizer = all || what == "optimizer",
                       .parameters = all || what == "parameters",
                       .gradients = all,
                       .kept = kept};
  check(choice.any() || what == "none",
        "offload must be none, optimizer, parameters or all, perhaps with a folder as in all:DIR, got \"{}\"", text);
  check(kept >= 0, "offload_keep must be a number of bytes, 0 or more, got {}", kept);
  check(kept == 0 || choice.any(), "offload_keep = {} with offload = {}: all stays in memory anyway", kept, text);
  if (colon == text.npos) return choice;
  choice.folder = text.substr(colon + 1);
  check(choice.any(), "offload = {}: none needs no folder", text);
  check(!choice.folder.empty(), "offload = {}: the folder after the colon is empty", text);
  return choice;
}

nn::OffloadOptions offload_options(const OffloadChoice& choice, Device device, std::int64_t memory_limit) {
  nn::OffloadOptions options;
  if (memory_limit > 0)
    options.bytes_in_flight = std::clamp<std::int64_t>(memory_limit / 8, 4096, options.bytes_in_flight);
  options.bytes_in_memory = choice.parameters ? choice.kept / 2 : choice.kept;
  options.folder = choice.folder;
  if (device == Device::cpu() && choice.folder.empty())
    options.folder = std::filesystem::temp_directory_path().string();
  return options;
}

std::optional<nn::ShardOffload> shard_offload(const OffloadChoice& choice, Device device, std::int64_t memory_limit) {
  if (!choice.parameters) return std::nullopt;
  const nn::OffloadOptions options = offload_options(choice, device, memory_limit);
  return nn::ShardOffload{.folder = options.folder,
                          .gradients = choice.gradients,
                          .bytes_in_flight = options.bytes_in_flight,
                          .bytes_in_memory = choice.optimizer ? choice.kept / 2 : choice.kept};
}

}  // namespace sherd
