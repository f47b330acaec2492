#pragma once
// What to let go of so that a step fits its bytes, for the fewest seconds.
#include <cstdint>
#include <optional>

#include "compile/passes/budget/step_model.h"

namespace sherd::ir {

/// A choice whose peak is at most `limit`, or nothing if none was found. It begins with what was recorded, all of which
/// stays open but gathered parameters. Where few gaps matter it is the best there is; else gaps are opened one after
/// the other, those that take most off what is over the limit for a second first, and closed again where others make up
/// for them. The same on all ranks that give the same model and limit.
std::optional<Choice> choose_gaps(const StepModel& model, std::int64_t limit);

/// The choice with the least peak that was found.
Choice least_choice(const StepModel& model);

}  // namespace sherd::ir
