#include "tools/plan/sweep.h"

#include <cmath>

#include "runtime/tensor/quantity.h"
#include "tools/train/exit_status.h"

namespace sherd::plan {

namespace {

constexpr int kMostValues = 64;

std::string line_of(const std::string& value, const std::vector<Option>& options, const PlannedFor& planned) {
  const Choice choice = choose(options, planned);
  if (!choice.best) return fmt::format("{:>14}  nothing fits\n", value);
  const Option& best = options[*choice.best];
  const double seconds = best.simulated->seconds;
  return fmt::format("{:>14}  {:<36} {:>9.1f} ms  {:>9.0f} tokens/s  {:>8}\n", value, best.name, seconds * 1e3,
                     static_cast<double>(step_tokens(best.config)) / seconds, format_bytes(best.forecast.memory.bytes));
}

}  // namespace

Sweep Sweep::parse(std::string_view text) {
  Sweep sweep;
  sweep.text_ = text;
  if (text.empty()) return sweep;
  const std::size_t equals = text.find('='), colon = text.find(':', equals == text.npos ? 0 : equals);
  check(equals != text.npos && equals > 0 && colon != text.npos,
        "sweep must be KEY=A:B, as batch=16:256 or link=1e9:1e11, got \"{}\"", text);
  const auto from = parse_byte_rate(text.substr(equals + 1, colon - equals - 1));
  const auto to = parse_byte_rate(text.substr(colon + 1));
  check(from && to && *from > 0 && *to >= *from && *to <= 1e18,
        "sweep {}: \"{}\" must be two positive numbers, the first not above the second", text, text.substr(equals + 1));
  check(std::log2(*to / *from) < kMostValues, "sweep {}: there would be more than {} values", text, kMostValues);
  sweep.key_ = text.substr(0, equals);
  sweep.from_ = *from;
  sweep.to_ = *to;
  return sweep;
}

std::string sweep_text(const Sweep& sweep, const std::vector<RowPlan>& rows, const PlannedFor& planned) {
  check_usage(planned.cluster.has_value(), "--sweep {} compares times; give --device-model", sweep.text());
  const bool is_link = sweep.key() == "link";
  check_usage(!is_link || planned.cluster->axes.empty(), "--sweep {}: --link shapes the axes; leave one of them out",
              sweep.text());
  std::string text =
      fmt::format("{:>14}  {:<36} {:>12}  {:>18}  {:>8}\n", sweep.key(), "row", "step", "all ranks", "peak");
  std::vector<Option> options;
  for (double value = sweep.from(); value <= sweep.to(); value *= 2) {
    PlannedFor at = planned;
    const std::string shown = is_link ? format_bytes(std::llround(value)) + "/s" : fmt::format("{}", value);
    FabricModel* const fabric = is_link ? &(at.cluster->out ? *at.cluster->out : at.cluster->in) : nullptr;
    if (fabric) *fabric = fabric->with_rate(value);
    if (is_link && !options.empty()) {
      for (Option& option : options)
        if (option.has_forecast()) option.simulated = simulate(option.forecast.step, *at.cluster);
    } else {
      options.clear();
      for (const RowPlan& row : rows) {
        const TrainConfig config =
            is_link ? row.config : as_usage([&] { return with(row.config, {{sweep.key(), shown}}); });
        Option& option = options.emplace_back(option_of(config, at));
        option.name = row.row.name;
        if (!row.row.left_out.empty()) option.left_out = row.row.left_out;
      }
    }
    text += line_of(shown, options, at);
  }
  return text;
}

}  // namespace sherd::plan
