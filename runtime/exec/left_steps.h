#pragma once
// How many steps of this rank were left by an exception and reset. Ranks leave a step at different places, so what they
// predict and record of the next one may differ; they reset alike. So what is kept from step to step, and must be the
// same on all ranks, is forgotten when this number changes.
#include <cstdint>

namespace sherd {

/// On the rank whose context is current.
std::uint64_t num_left_steps();
void count_left_step();

/// How often what this rank predicts of a step, to gather early, has changed. Two recordings of one step may differ by
/// that and be right both.
std::uint64_t num_predictions();
void note_other_prediction();

}  // namespace sherd
