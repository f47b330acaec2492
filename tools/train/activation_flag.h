#pragma once
// `--offload-activations`: whether what blocks save for backward leaves memory, and for where.
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/autograd/offload_saved.h"

namespace sherd {

struct ActivationChoice {
  bool of_blocks = false;
  std::string folder{};  ///< empty: that of temporary files
};

/// "none" or "blocks", perhaps with ":DIR". Error naming what is wrong.
ActivationChoice parse_offload_activations(std::string_view text);

/// For training on `device`: where they go, and how much of them is in memory at a time, which is an eighth of a limit
/// (0: none) or less.
OffloadSavedOptions activation_options(const ActivationChoice& choice, Device device, std::int64_t memory_limit);

}  // namespace sherd
