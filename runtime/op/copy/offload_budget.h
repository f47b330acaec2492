#pragma once
// What leaves memory where a part of it may stay.
#include <cstdint>
#include <span>
#include <vector>

namespace sherd {

/// Which of things of these sizes, in bytes, stay within a budget: the largest leave first, of equal ones the last of
/// them, until the others fit. A larger budget keeps all that a smaller one keeps.
std::vector<bool> kept_in_memory(std::span<const std::int64_t> bytes, std::int64_t budget);

}  // namespace sherd
