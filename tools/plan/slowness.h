#pragma once
// Ranks and links that are slower than others, as flags of `sherd simulate` say it.
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/exec/simulate.h"

namespace sherd::plan {

/// Factors of the ranks' compute by "3=1.3,7=2"; "1%=1.5" is one rank of a hundred, drawn by `seed`, each by a factor
/// of its own between 1 and 1.5. Empty for "". Error naming --slow and the part that is wrong.
std::vector<double> slow_ranks(std::string_view text, int ranks, std::uint64_t seed);

/// Links by "0-1=0.1": neighbours in a ring of a group, and the factor of their bandwidth. Error naming --slow-link,
/// and the neighbours of a rank where the two are none in any group of `step`.
std::vector<SimulateOptions::SlowLink> slow_links(std::string_view text, const Timeline& step);

/// Ranks by "0,7". Error naming --trace-ranks and the part that is wrong.
std::vector<int> ranks_by_text(std::string_view text, int ranks);

}  // namespace sherd::plan
