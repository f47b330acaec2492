#pragma once
// What would fit where a run does not: settings that train the same model in less memory, each with the bytes that
// ghosts of its ranks predict.
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/group/process_group.h"
#include "runtime/tensor/error.h"
#include "tools/train/config.h"

namespace sherd::train {

/// A config that differs from the one that was asked about.
struct Suggestion {
  std::string flags{};  ///< how: "--recompute full --accumulate 2"
  TrainConfig config{};
  std::int64_t bytes = 0;  ///< of the rank that holds most, at its peak; the least memory_limit
};

struct Advice {
  std::vector<Suggestion> fits{};  ///< each setting that fits alone, at its mildest; then several together
  Suggestion smallest{};           ///< of all that were tried, whether it fits or not
  bool is_complete = true;         ///< false: there was no time to try all
};

/// What fits `limit` bytes per rank, of: more shards (strategy), a captured step with a budget, recompute, smaller
/// micro-batches (accumulate), shards of gradients that wait, finer units, offload where the program has it, and last a
/// smaller batch, which is another recipe. On several ranks up to eight of them are predicted, else the first, the
/// middle and the last. Tries nothing new after `time`. Local.
Advice advise_on_memory(const TrainConfig& config, int ranks, std::int64_t data_vocabulary, std::int64_t limit,
                        std::chrono::milliseconds time = std::chrono::seconds(3));

/// What a rank held when it ran out of memory.
struct HeldMemory {
  std::int64_t most = 0;          ///< bytes at its peak: what the device had room for, where config.memory_limit is 0
  std::int64_t of_libraries = 0;  ///< of that, workspace of a device's libraries, which is in no prediction
};

/// Adds to the error of a run that ran out of memory: where that was and what was held, the memory of each module, and
/// what fits, or, if nothing does, the least limit that any setting meets and what holds it. Of ranks that all run out
/// the first says it, the others name it. Meanwhile SIGTERM does not end the process. Never throws.
void explain_out_of_memory(OutOfMemory& error, const TrainConfig& config, const ProcessGroup& group,
                           std::int64_t data_vocabulary, HeldMemory held) noexcept;

}  // namespace sherd::train
