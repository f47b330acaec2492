#pragma once
// `--offload`: what lies outside of memory, and where; `--offload-keep`: how much of it stays.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "nn/optim/offloaded_state.h"
#include "nn/parallel/shard/unit/policy.h"

namespace sherd {

struct OffloadChoice {
  bool optimizer = false;   ///< its state
  bool parameters = false;  ///< their shards
  bool gradients = false;   ///< their shards, reduced
  std::string folder{};     ///< empty: that of temporary files
  std::int64_t kept = 0;    ///< bytes of it all that stay in memory
  bool any() const { return optimizer || parameters || gradients; }
};

/// "none", "optimizer", "parameters" or "all", perhaps with ":DIR"; and how many bytes of it stay in memory. Error
/// naming what is wrong.
OffloadChoice parse_offload(std::string_view text, std::int64_t kept = 0);

/// For state of parameters on `device`: where it goes, and how much of it is in memory at a time, which is an eighth of
/// a limit (0: none) or less. Of what is kept, state has one half and
/// shards the other where both are offloaded: they are equally large. Error for a folder and a GPU, and for a limit
/// under which no piece would fit.
nn::OffloadOptions offload_options(const OffloadChoice& choice, Device device, std::int64_t memory_limit);
/// The same of shards; none if they stay in memory.
std::optional<nn::ShardOffload> shard_offload(const OffloadChoice& choice, Device device, std::int64_t memory_limit);

}  // namespace sherd
