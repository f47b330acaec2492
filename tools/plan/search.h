#pragma once
// `sherd plan --search`: the fastest ways to train one batch, among all of a SearchSpace.
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "tools/plan/planner.h"
#include "tools/plan/space.h"

namespace sherd::plan {

struct SearchOptions {
  std::size_t best = 10;     ///< how many ways are looked for
  std::size_t tries = 2000;  ///< most that are forecast in full
};

struct Found {
  std::vector<Option> best{};                     ///< that fit, the fastest first
  std::size_t ways = 0;                           ///< in the space
  std::size_t tried = 0;                          ///< forecast in full and priced
  std::size_t tried_too_large = 0;                ///< of these, what does not fit
  std::size_t too_large = 0;                      ///< not tried: their state and activations do not fit
  std::size_t too_slow = 0;                       ///< not tried: they take at least as long as the last of `best`
  std::size_t ghosts = 0;                         ///< steps that were run for bounds
  double untried_seconds = 0;                     ///< what others take at least; 0: there are none
  std::size_t not_searched = 0;                   ///< others, that `tries` has left
  std::size_t broken_bounds = 0;                  ///< of `tried`: took or held less than its bounds say
  std::int64_t least_bytes = 0;                   ///< what a rank holds at least, in any way that was left out for it
  std::map<std::string, std::size_t> left_out{};  ///< ways that cannot be run, by why
  std::vector<std::string> text() const;          ///< lines of it
  std::string why_none(std::int64_t memory_limit) const;  ///< a sentence, where `best` is empty
};

/// Ways in the order of what they take at least, until that is more than the last of the best takes. `planned` has a
/// cluster. Equal inputs give equal results, whatever the number of threads.
Found search(const SearchSpace& space, const PlannedFor& planned, const SearchOptions& options = {});

}  // namespace sherd::plan
