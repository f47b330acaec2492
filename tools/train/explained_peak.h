#pragma once
// Why a rank needs as much memory as it does, from a ghost of it: the moment of the peak, what is held then, and what
// each module holds.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exec/memory_log.h"
#include "tools/train/config.h"
#include "tools/train/module_memory.h"
#include "tools/train/predicted_peak.h"

namespace sherd::train {

struct ExplainedPeak {
  PredictedPeak predicted{};                    ///< without a limit
  MemoryLog::Picture peak{};                    ///< the moment of predicted.bytes
  std::optional<MemoryLog::Refusal> refusal{};  ///< under the limit, if it is too low
  std::vector<ModuleMemory> modules;            ///< in a settled step
};

/// As predict_peak(), under config.memory_limit for the refusal and without one for the rest.
ExplainedPeak explain_peak(const TrainConfig& config, int rank, int ranks, std::int64_t data_vocabulary);

/// The moment, the categories, and the `most` largest blocks by name or, without one, by what made them; blocks alike
/// are one line. Each line begins with `indent`.
std::string print_picture(const MemoryLog::Picture& picture, std::size_t most = 8, std::string_view indent = "  ");

}  // namespace sherd::train
