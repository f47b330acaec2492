#pragma once
// Which of several ways to train is the one to take: the fastest that fits; of those that are equally fast, as far as
// predictions tell, the one that holds least.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sherd::plan {

/// One way to train, as it is predicted.
struct Candidate {
  std::string name;
  double seconds = 0;       ///< of a step
  std::int64_t bytes = 0;   ///< most of a rank
  std::int64_t tokens = 1;  ///< of a step over all ranks: what seconds are compared by
  double seconds_per_token() const { return seconds / static_cast<double>(tokens); }
};

struct Choice {
  std::optional<std::size_t> best;       ///< none if nothing fits
  std::vector<std::size_t> ties;         ///< others within the error of the fastest, the one that holds least first
  std::optional<std::size_t> runner_up;  ///< the fastest that fits and is no tie
  std::optional<std::size_t> refused;    ///< the fastest that does not fit, where it would win
};

/// `limit` is of a rank; 0: none. `error` is the share of a step by which predictions may be off. Of equal candidates
/// the first is taken.
Choice choose(std::span<const Candidate> candidates, std::int64_t limit, double error);

/// Where another candidate wins, as something is turned up or down.
struct Flip {
  double at = 0;     ///< the least change that has been tried at which the other wins
  std::string name;  ///< that wins there
};
/// Searches from `from` to `to`, both positive, on a scale of ratios: doublings until the winner's name differs from
/// `now`, then bisection until the bounds are within `resolution` of each other,
/// or next to each other. Nothing if none wins before `to`.
/// `is_whole`: the value counts something.
std::optional<Flip> find_flip(double from, double to, double resolution, bool is_whole, const std::string& now,
                              const std::function<std::string(double)>& winner_at);

}  // namespace sherd::plan
