#pragma once
// What is refused where it is said, rather than at the first step or never: numbers that no step can mean.
#include <string_view>
#include <vector>

#include "nn/module.h"

namespace sherd::nn {

/// Error naming `what` unless the value is a number of at least 0 that f32 holds: rows compute in it.
void check_not_negative(std::string_view what, double value);
/// Error naming `what` and the least value if the value is above 0 and less than a normal f32: rows would make it 0, or
/// divide by it to infinity.
void check_not_subnormal(std::string_view what, double value);
/// Error naming `what` unless the value lies in [0, 1).
void check_decay_rate(std::string_view what, double value);
/// Error naming a parameter that is twice in the list of `what`, or null.
void check_each_once(const std::vector<Parameter*>& parameters, std::string_view what);

}  // namespace sherd::nn
