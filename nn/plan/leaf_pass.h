#pragma once
// Whether a rank's leaves (Numerics, "layout_free") share one forward and one backward pass, or run as micro-batches.
// The bits are the same; a shared pass has larger products and gathers once, and holds activations of all leaves.
#include <cstdint>
#include <string>

#include "nn/models/language_model.h"
#include "nn/plan/training_plan.h"

namespace sherd::nn {

/// Positions of a leaf from which on a product sums a row of its result in one order, however many rows it has.
inline constexpr std::int64_t kFewestPositions = 9;

/// Why leaves of `positions` positions each (sequences times tokens) run as micro-batches; empty: they share a pass.
std::string why_micro_batches(const TrainingPlan& plan, const LanguageModel& model, std::int64_t positions);

}  // namespace sherd::nn
