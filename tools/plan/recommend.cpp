#include "tools/plan/recommend.h"

#include <algorithm>
#include <cmath>

namespace sherd::plan {

namespace {

bool fits(const Candidate& candidate, std::int64_t limit) { return limit == 0 || candidate.bytes <= limit; }

/// The index of the fastest of those that `is_meant`.
template <class IsMeant>
std::optional<std::size_t> fastest(std::span<const Candidate> candidates, const IsMeant& is_meant) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < candidates.size(); ++i)
    if (is_meant(i) && (!best || candidates[i].seconds_per_token() < candidates[*best].seconds_per_token())) best = i;
  return best;
}

}  // namespace

Choice choose(std::span<const Candidate> candidates, std::int64_t limit, double error) {
  Choice choice;
  const auto first = fastest(candidates, [&](std::size_t i) { return fits(candidates[i], limit); });
  if (!first) return choice;
  const double slowest_tie = candidates[*first].seconds_per_token() * (1 + error);
  for (std::size_t i = 0; i < candidates.size(); ++i)
    if (fits(candidates[i], limit) && candidates[i].seconds_per_token() <= slowest_tie) choice.ties.push_back(i);
  std::ranges::stable_sort(choice.ties, {}, [&](std::size_t i) { return candidates[i].bytes; });
  choice.best = choice.ties.front();
  choice.ties.erase(choice.ties.begin());
  choice.runner_up = fastest(candidates, [&](std::size_t i) {
    return fits(candidates[i], limit) && candidates[i].seconds_per_token() > slowest_tie;
  });
  choice.refused = fastest(candidates, [&](std::size_t i) {
    return !fits(candidates[i], limit) &&
           candidates[i].seconds_per_token() * (1 + error) < candidates[*first].seconds_per_token();
  });
  return choice;
}

std::optional<Flip> find_flip(double from, double to, double resolution, bool is_whole, const std::string& now,
                              const std::function<std::string(double)>& winner_at) {
  const double factor = to > from ? 2 : 0.5;
  const auto is_past = [&](double value) { return factor > 1 ? value > to : value < to; };
  double same = from;
  for (double next = from * factor;; next *= factor) {
    if (is_whole) next = factor > 1 ? std::ceil(next) : std::floor(next);
    if (is_past(next)) next = to;
    if (next == same) return std::nullopt;
    std::string winner = winner_at(next);
    if (winner == now) {
      same = next;
      continue;
    }
    Flip flip{next, std::move(winner)};
    for (;;) {
      double middle = std::sqrt(same * flip.at);
      if (is_whole) middle = std::floor((same + flip.at) / 2);
      const bool is_close = std::abs(flip.at / same - 1) <= resolution;
      if (is_close || middle == same || middle == flip.at) return flip;
      winner = winner_at(middle);
      if (winner == now) same = middle;
      else flip = {middle, std::move(winner)};
    }
  }
}

}  // namespace sherd::plan
