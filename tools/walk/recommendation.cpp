#include "tools/walk/recommendation.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "tools/plan/planner.h"

namespace sherd::walk {

namespace {

/// What a cell says: measured where it was, else predicted.
std::optional<double> value_of(const table::Row& row, std::string_view key) {
  const table::Cell& cell = row.at(key);
  return cell.measured ? cell.measured : cell.predicted;
}

std::string described(const table::Row& row) {
  return fmt::format("{}: {:.3g} ms a step, {} a rank", row.name, 1e3 * *value_of(row, "step_seconds"),
                     format_bytes(std::llround(*value_of(row, "memory_bytes.total"))));
}

}  // namespace

std::string recommendation_of(std::span<const table::Row> rows) {
  std::vector<const table::Row*> known;
  std::vector<plan::Candidate> candidates;
  double error = 0;
  bool is_measured = false;
  for (const table::Row& row : rows) {
    const auto seconds = value_of(row, "step_seconds"), bytes = value_of(row, "memory_bytes.total");
    if (!seconds || !bytes || !row.left_out.empty() || !row.failure.empty()) continue;
    if (row.knob == "param_dtype") continue;  // other roundings are no matter of speed alone
    known.push_back(&row);
    candidates.push_back({.name = row.name, .seconds = *seconds, .bytes = std::llround(*bytes)});
    error = std::max(error, row.at("step_spread_seconds").measured.value_or(0) / *seconds);
    is_measured = is_measured || row.has_run();
  }
  if (!is_measured) error = plan::kTie;
  const plan::Choice choice = plan::choose(candidates, 0, error);
  if (!choice.best) return "No row has a time to choose by.";
  std::string text = fmt::format("Take {}.", described(*known[*choice.best]));
  std::vector<std::string> ties;
  for (const std::size_t i : choice.ties) ties.push_back(candidates[i].name);
  if (!ties.empty())
    text += fmt::format(" As fast within {:.1f} %, {}, and holding no less: {}.", 100 * error,
                        is_measured ? "the noise" : "what predictions tell", fmt::join(ties, "; "));
  if (choice.runner_up)
    text += fmt::format(" The next one takes {:.0f} % longer: {}.",
                        100 * (candidates[*choice.runner_up].seconds / candidates[*choice.best].seconds - 1),
                        candidates[*choice.runner_up].name);
  return text;
}

}  // namespace sherd::walk
