#pragma once
// What is refused where it is said, rather than at the first step or never: numbers that no step can mean.
#include <string_view>
#include <vector>

#include "nn/module.h"

namespace sherd::nn {

/// Error naming `what` unless the value is a number of at least 0 that f32 holds: rows compute in it.
void check_not_negative(std::string_view what, double value);
/// Error naming `what` unless the value lies in [0, 1).
void check_decay_rate(std::string_view what, double value);
/// Error naming a parameter that is twice in the list of `what`, or null.
void check_each_once(const std::vector<Parameter*>& parameters, std::string_view what);

}  // namespace sherd::nn
