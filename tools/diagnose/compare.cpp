#include "tools/diagnose/compare.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/tensor/indices.h"

namespace sherd::diagnose {

namespace {

constexpr double kWorthSaying = 0.005;  // of a step

std::string what_of(const RunFile& run, Share share) {
  std::string family;
  if (share == Share::gathers) family = most_exposed(run, &UnitTime::gather);
  if (share == Share::reductions) family = most_exposed(run, &UnitTime::reduce);
  return family.empty() ? std::string(name(share)) : fmt::format("{} of {}", name(share), family);
}

std::vector<std::string> differences(const RunFile& before, const RunFile& now) {
  TrainConfig a = before.config, b = now.config;
  const auto old_values = bind(a).values(), new_values = bind(b).values();
  std::vector<std::string> texts;
  for (const std::size_t i : indices(new_values)) {
    const auto& [key, value] = new_values[i];
    if (old_values[i].second == value || key == "metrics" || key == "trace" || key == "trace_steps" || key == "steps")
      continue;
    texts.push_back(fmt::format("{} {} -> {}", key, to_string(old_values[i].second), to_string(value)));
  }
  return texts;
}

// Parts of the throughput's change: seconds that a share takes more, over those of a step now, or of one before where
// it rose.
std::string sentence_of(const Comparison& both, const RunFile& before, const RunFile& now) {
  const double old_seconds = both.before.total(), new_seconds = both.now.total();
  const bool fell = new_seconds > old_seconds;
  const double whole = std::abs(new_seconds - old_seconds) / new_seconds;
  if (whole < kWorthSaying) return "throughput is the same";
  std::vector<std::size_t> order(kNumShares);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto change = [&](std::size_t s) { return (both.now.seconds[s] - both.before.seconds[s]) / new_seconds; };
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t s) { return fell ? change(s) : -change(s); });
  std::string parts;
  for (const std::size_t s : order) {
    if (std::abs(change(s)) < kWorthSaying) continue;
    const bool helps = (change(s) < 0) == fell;  // against the whole
    const RunFile& shown = (change(s) > 0) ? now : before;
    parts += fmt::format("{}{}{:.1f} % {}", parts.empty() ? "" : ", ", helps ? "-" : "", 100 * std::abs(change(s)),
                         what_of(shown, static_cast<Share>(s)));
  }
  return fmt::format("throughput {} {:.1f} %: {}", fell ? "fell" : "rose", 100 * whole, parts);
}

}  // namespace

Comparison compare(const RunFile& before, const RunFile& now) {
  Comparison both{.tokens = now.tokens(), .before = shares_of(before), .now = shares_of(now)};
  both.before *= now.tokens() / before.tokens();
  both.settings = differences(before, now);
  if (before.tokens() != now.tokens())
    both.notes.push_back(
        fmt::format("the baseline has {:.0f} tokens of a step and this run {:.0f}: both are compared per "
                    "token, the baseline as {:.0f}",
                    before.tokens(), now.tokens(), now.tokens()));
  if (before.ranks != now.ranks)
    both.notes.push_back(fmt::format("the baseline ran on {} ranks and this run on {}", before.ranks, now.ranks));
  if (before.version != now.version)
    both.notes.push_back(fmt::format("sherd {} made the baseline, and {} this run", before.version, now.version));
  both.sentence = sentence_of(both, before, now);
  return both;
}

void rank_by_difference(std::vector<Finding>& findings, const std::vector<Finding>& before) {
  const auto more = [&](const Finding& finding) {
    const auto found = std::ranges::find(before, finding.id, &Finding::id);
    return finding.seconds - (found == before.end() ? 0 : found->seconds);
  };
  std::ranges::stable_sort(findings, std::greater<>(), more);
}

}  // namespace sherd::diagnose
