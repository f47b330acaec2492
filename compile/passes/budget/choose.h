#pragma once
// What to let go of so that a step fits its bytes, for the fewest seconds.
#include <cstdint>
#include <optional>
#include <vector>

#include "compile/passes/budget/step_model.h"

namespace sherd::ir {

/// Where a choice begins, and what of it stays.
struct Start {
  Choice choice;
  std::vector<bool> is_fixed;  ///< by gap
};

/// A choice whose peak is at most `limit`, or nothing if none was found. What is gone at the start stays gone, but
/// gathered parameters. Where few gaps matter it is the best there is; else values are let go one after the other,
/// those first that take most off what is over the limit for a second, and held again where there is room, the most
/// seconds per byte first. The same on all ranks that give the same model, limit and start. `from`: a choice to go on
/// from, where letting go from the start comes to nothing or takes long.
std::optional<Choice> choose_gaps(const StepModel& model, std::int64_t limit, const Start& start,
                                  const Choice* from = nullptr);

/// Choices whose peaks fall by a hundredth or more each, from the start's to the least that letting go of one thing
/// after the other comes to. In them nothing has been held again that could be.
std::vector<Choice> falling_choices(const StepModel& model, const Start& start);

/// The choice with the least peak that is found, by bytes alone: what prices say changes nothing. Nothing has been held
/// again in it.
Choice least_choice(const StepModel& model, const Start& start);

}  // namespace sherd::ir
