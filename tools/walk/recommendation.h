#pragma once
#include <span>
#include <string>

#include "tools/table/table.h"

namespace sherd::walk {

/// Which row to take, as `sherd plan` chooses (tools/plan/recommend.h): the fastest, by what was measured or else
/// predicted; of those that the spread of runs does not tell apart, the one that holds least. A sentence or two.
std::string recommendation_of(std::span<const table::Row> rows);

}  // namespace sherd::walk
