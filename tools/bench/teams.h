#pragma once
// Several forms of one peer, such as eager and compiled: all take their turns, and only the fastest of them counts.
#include <string>
#include <vector>

#include "tools/bench/contest.h"

namespace sherd::bench {

struct Variant {
  std::string name;                ///< for people
  std::vector<std::string> words;  ///< after the peer's own
};

/// Each peer once in every variant. Those of one peer are a team.
std::vector<Contestant> in_variants(const std::vector<Contestant>& peers, const std::vector<Variant>& variants);

/// Leaves the fastest of each team in outcome.peers, in the order of their teams; its settings say what it is, and what
/// became of the others. `outcome` is of `contest`.
void keep_fastest(const Contest& contest, Outcome& outcome);

}  // namespace sherd::bench
