#pragma once
// What would fit where a run does not: settings that train the same model in less memory, each with the bytes that
// ghosts of its ranks predict, and the seconds of its step where a calibration prices it.
#include <chrono>
#include <cstdint>
#include <optional>
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
  std::int64_t bytes = 0;           ///< of the rank that holds most, at its peak; the least memory_limit
  std::int64_t gradients = 0;       ///< most bytes of gradients on that rank
  std::optional<double> seconds{};  ///< of a step; none where nothing prices it, or there was no time

  /// "--recompute full  1.2 MB (1234567 bytes) at most per rank, 41.2 ms a step", and of micro-batches what gradients
  /// they keep.
  std::string text() const;
};

struct Advice {
  /// Each setting that fits alone, at its mildest; then several together. Those of most tokens per second come first
  /// where all are priced.
  std::vector<Suggestion> fits{};
  Suggestion smallest{};    ///< of all that were tried, whether it fits or not
  bool is_complete = true;  ///< false: there was no time to try all
  std::string prices{};     ///< what seconds are by, or why there are none: StepPrices::text()
};

/// What fits `limit` bytes per rank, of: more shards (strategy), a captured step with a budget, recompute, smaller
/// micro-batches (accumulate), shards of gradients that wait, finer units, offload where the program has it, and last a
/// smaller batch, which is another recipe. On several ranks up to eight of them are predicted, else the first, the
/// middle and the last. Tries nothing new after three quarters of `time`, and prices nothing after `time`. Local.
Advice advise_on_memory(const TrainConfig& config, int ranks, std::int64_t data_vocabulary, std::int64_t limit,
                        std::chrono::milliseconds time = std::chrono::seconds(3));

/// What a rank held when it ran out of memory.
struct HeldMemory {
  std::int64_t most = 0;          ///< bytes at its peak: what the device had room for, where config.memory_limit is 0
  std::int64_t of_libraries = 0;  ///< of that, workspace of a device's libraries, which is in no prediction
};

/// Adds to the error of a run that ran out of memory: where that was and what was held, the memory of each module, and
/// last what fits, or, if nothing does, what holds the least limit that any setting meets and which one it is. Of ranks
/// that all run out the first says it, the others name it. Meanwhile SIGTERM does not end the process. Never throws.
void explain_out_of_memory(OutOfMemory& error, const TrainConfig& config, const ProcessGroup& group,
                           std::int64_t data_vocabulary, HeldMemory held) noexcept;

}  // namespace sherd::train
