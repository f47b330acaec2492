#include "tools/train/divergence.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/tensor/error.h"

namespace sherd::train {

namespace {

constexpr std::size_t kFewest = 20, kMost = 100;  // losses that a median is made of
constexpr double kSmallest = 1e-3;                // deviation, as a share of the median: losses may be all but constant

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

// A norm that is not finite is what a step is skipped for; the loss of such a step may be anything.
DivergenceWatch::Verdict DivergenceWatch::judge(const StepMetrics& metrics) {
  const bool is_skip = (metrics.loss_scale || rule_.skips) && !std::isfinite(metrics.grad_norm);
  history_.skips_in_a_row = is_skip ? history_.skips_in_a_row + 1 : 0;
  if (is_skip) {
    const bool is_last_scale = metrics.loss_scale && *metrics.loss_scale <= rule_.min_loss_scale;
    return is_last_scale || history_.skips_in_a_row > kMostSkips ? Verdict::not_finite : Verdict::skipped;
  }
  if (!std::isfinite(metrics.loss) || !std::isfinite(metrics.grad_norm)) return Verdict::not_finite;
  if (is_spike(metrics.loss)) return Verdict::spike;
  history_.losses.push_back(metrics.loss);
  if (history_.losses.size() > kMost) history_.losses.erase(history_.losses.begin());
  return Verdict::good;
}

DivergenceWatch::Usual DivergenceWatch::usual_loss() const {
  std::vector<double> values = history_.losses;
  const double median = median_of(values);
  for (double& value : values) value = std::abs(value - median);
  return {median, std::max(median_of(std::move(values)), kSmallest * std::abs(median))};
}

bool DivergenceWatch::is_spike(double loss) const {
  if (rule_.spike == 0 || history_.losses.size() < kFewest) return false;
  const Usual usual = usual_loss();
  return loss > usual.median + rule_.spike * usual.deviation;
}

Divergence DivergenceWatch::describe(const StepMetrics& metrics, Verdict verdict) const {
  Divergence found{metrics, "", verdict == Verdict::spike};
  if (found.is_spike) {
    const Usual usual = usual_loss();
    found.what = fmt::format("the loss is {}, more than spike = {} deviations of {} above {}, the median of {} steps",
                             metrics.loss, rule_.spike, usual.deviation, usual.median, history_.losses.size());
    return found;
  }
  found.what = fmt::format("the loss is {}, the gradient norm {}", metrics.loss, metrics.grad_norm);
  if (metrics.loss_scale)
    found.what +=
        fmt::format(", at a loss scale of {} and after {} skipped steps", *metrics.loss_scale, metrics.skipped_steps);
  else if (history_.skips_in_a_row > 0)
    found.what += fmt::format(", after {} skipped steps in a row", history_.skips_in_a_row);
  return found;
}

// As many digits as tell a double from all others.
std::string to_text(const DivergenceWatch::History& history) {
  return nlohmann::json{{"skips_in_a_row", history.skips_in_a_row}, {"losses", history.losses}}.dump();
}

DivergenceWatch::History watch_history_from_text(std::string_view text, const std::string& source) {
  try {
    const auto object = nlohmann::json::parse(text);
    DivergenceWatch::History history;
    object.at("skips_in_a_row").get_to(history.skips_in_a_row);
    object.at("losses").get_to(history.losses);
    const bool is_known = history.skips_in_a_row >= 0 && history.skips_in_a_row <= kMostSkips &&
                          history.losses.size() <= kMost &&
                          std::ranges::all_of(history.losses, [](double loss) { return std::isfinite(loss); });
    check(is_known && object.at("skips_in_a_row").is_number_integer(),
          "{}: what it knows of the last steps is none: {}", source, text);
    return history;
  } catch (const nlohmann::json::exception& error) {
    fail("{}: what it knows of the last steps cannot be read ({})", source, error.what());
  }
}

}  // namespace sherd::train
