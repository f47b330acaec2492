#pragma once
// Model FLOPs utilization: the operations of a step, over those that the ranks could have made in its time.
#include <cstdint>

#include "runtime/comm/group/process_group.h"
#include "tools/train/config.h"

namespace sherd::train {

/// Operations of a step of all ranks: for each token 6 for a parameter and, of the causal half of attention, 6 x layers
/// x sequence x width. `parameters` counts a tied matrix once. What is computed again is not counted.
double step_flops(const TrainConfig& config, std::int64_t parameters);

/// FLOP/s of all ranks at their peak in the type that they compute in: what a core makes on its registers (measured, a
/// millisecond) times the threads of ranks, no more than the CPUs that a host allows. 0 where it is not known: on GPUs.
/// Collective.
double peak_flops(const TrainConfig& config, ProcessGroup& group);

}  // namespace sherd::train
