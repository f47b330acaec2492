#pragma once
// What each module of a model in training holds on this rank, as a tree: which layers are worth sharding, and which
// are worth recomputing.
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/exec/memory_log.h"
#include "tools/train/train_step.h"

namespace sherd::train {

/// Bytes of one module without its children. `gathered`: while its unit is gathered, 0 if it never is.
struct ModuleMemory {
  struct Part {
    std::int64_t here = 0, gathered = 0;
  };
  std::string path{};  ///< empty: the model itself
  Part parameters{};
  Part gradients{};            ///< between backward and the update; gathered: while backward makes them
  std::int64_t optimizer = 0;  ///< state
  std::int64_t saved = 0;      ///< activations that the tape keeps from forward to backward
};

/// The modules that hold something, in the order of the model. Optimizer state is there; gradients are those that the
/// parameters have now. `before_backward` is the picture of a log that has seen a step.
std::vector<ModuleMemory> module_memory(TrainStep& step, const MemoryLog::Picture& before_backward);

/// A table, each line with all that is below its module; modules of a list that hold the same are one line, "0-11
/// each". Gathered bytes are of all units at once: a step gathers some at a time.
std::string print_module_memory(const std::vector<ModuleMemory>& modules);

}  // namespace sherd::train
