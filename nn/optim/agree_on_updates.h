#pragma once
// After a step that was left by an exception: do all ranks still have the same model?
#include <vector>

#include "nn/optim/optimizer.h"
#include "runtime/comm/group/process_group.h"

namespace sherd::nn {

/// Ranks tell each other whether the optimizers of `parameters` are whole and how many updates they have made. If one
/// of a rank is torn, or has made more updates than another rank's, it is marked torn on every rank, with the reason.
/// Gradient scales are 1 again, and what step_in_backward() has asked for is forgotten. Loss scalers forget what
/// unscale() has seen; where not all ranks came to their update(), so that scales or counts differ, all take those of
/// rank 0. Collective, and blocks; local on one rank and on ghosts. Random rows go back to the beginning of the step
/// (take_back_random_calls()). Error, on every rank, if ranks have different numbers of optimizers or scalers.
void agree_on_updates(const std::vector<Parameter*>& parameters, ProcessGroup& group);

}  // namespace sherd::nn
