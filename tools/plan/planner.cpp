#include "tools/plan/planner.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/tensor/error.h"

namespace sherd::plan {

namespace {

/// What it says, without where.
std::string said_of(const Error& error) { return error.message().substr(0, error.message().find('\n')); }

/// FLOP/s of the fastest product.
double fastest_rate(const DeviceModel& device) {
  double fastest = 0;
  for (const auto* rates : {&device.products, &device.attention})
    for (const auto& [dtype, rate] : *rates)
      for (const Rate::Point& point : rate.points) fastest = std::max(fastest, point.per_second);
  return fastest;
}

/// Seconds that a step of `option` takes at least with so many times the tokens. Fewer tokens take at least their share
/// of what all take, as calls do not become faster. More of them take no less than these do, nor than their products at
/// the highest rate. Ranks of tp send less of fewer tokens.
double least_seconds(const Option& option, const Cluster& cluster, double tokens, bool same_link) {
  const Simulation::RankTimes& rank = option.simulated->of(0);
  const double fewer = std::min(1.0, tokens), fastest = fastest_rate(cluster.device);
  const double products = fastest > 0 ? cluster.software * option.forecast.step.flops() * tokens / fastest : 0;
  const double link = rank.busy.empty() || !same_link ? 0 : std::ranges::max(rank.busy);
  return std::max({rank.compute * fewer, products, link * (option.config.plan.mesh.has("tp") ? fewer : 1)});
}

double link_seconds(const Option& option) {
  double seconds = 0;
  for (const Simulation::Part& axis : option.simulated->axes) seconds += axis.seconds;
  return seconds;
}

/// Whether another option is no worse in anything: step, compute, links and memory.
bool is_beaten(const std::vector<Option>& options, std::size_t index) {
  const auto numbers = [](const Option& option) {
    return std::array{option.simulated->seconds, option.simulated->of(0).compute, link_seconds(option),
                      static_cast<double>(option.forecast.memory.bytes), static_cast<double>(option.forecast.state)};
  };
  const auto own = numbers(options[index]);
  for (std::size_t i = 0; i < options.size(); ++i) {
    if (i == index || !options[i].has_forecast()) continue;
    const auto other = numbers(options[i]);
    const auto is_no_worse = [](double a, double b) { return a <= b * (1 + 1e-3); };
    if (std::ranges::equal(other, own, is_no_worse) && (i < index || !std::ranges::equal(own, other, is_no_worse)))
      return true;
  }
  return false;
}

constexpr std::int64_t kSettled = 4;  // micro-batches, of which all but the first do the same

/// A part of `parts` of that name, or null.
const Simulation::Part* find_part(const std::vector<Simulation::Part>& parts, const Simulation::Part& like) {
  const auto found = std::ranges::find_if(
      parts, [&](const Simulation::Part& part) { return part.name == like.name && part.fabric == like.fabric; });
  return found == parts.end() ? nullptr : &*found;
}

/// `last` with `more` micro-batches, each of which adds what the last one has added to `before`.
void extend(Simulation& last, const Simulation& before, double more) {
  const auto add = [more](double& value, double earlier) { value += more * (value - earlier); };
  add(last.seconds, before.seconds);
  using Times = Simulation::RankTimes;
  for (double Times::* const of :
       {&Times::seconds, &Times::compute, &Times::transfer, &Times::skew, &Times::throttle, &Times::caused})
    add(last.ranks[0].*of, before.ranks[0].*of);
  using Part = Simulation::Part;
  for (Part& axis : last.axes)
    if (const Part* const earlier = find_part(before.axes, axis))
      for (double Part::* const of :
           {&Part::calls, &Part::wire_bytes, &Part::seconds, &Part::transfer, &Part::skew, &Part::throttle})
        add(axis.*of, earlier->*of);
}

/// The same of what is held: tokens and losses of each.
void extend(nn::Prediction& last, const nn::Prediction& before, std::int64_t more) {
  last.bytes += more * (last.bytes - before.bytes);
  for (std::size_t c = 0; c < kNumCategories; ++c) {
    last.peak[c] += more * (last.peak[c] - before.peak[c]);
    last.at_peak[c] += more * (last.at_peak[c] - before.at_peak[c]);
  }
}

/// What `count` micro-batches give, by three and four of them.
Option extended(const Option& three, const Option& four, std::int64_t count) {
  if (!three.has_forecast() || !four.has_forecast()) return three.has_forecast() ? four : three;
  Option option = four;
  extend(*option.simulated, *three.simulated, static_cast<double>(count - kSettled));
  extend(option.forecast.memory, three.forecast.memory, count - kSettled);
  option.config.batch = option.config.batch / kSettled * count;
  option.config.plan.micro_batches = count;
  return option;
}

}  // namespace

Option option_of(const TrainConfig& config, const PlannedFor& planned) {
  Option option{.config = config};
  try {
    option.forecast = forecast(config, planned.ranks, planned.vocabulary);
    if (planned.cluster) option.simulated = simulate(option.forecast.step, *planned.cluster);
  } catch (const Error& error) {
    option.forecast = {};
    option.left_out = said_of(error);
  }
  return option;
}

Option changed(const Option& option, const Changes& changes, const PlannedFor& planned) {
  Option other{.config = option.config};
  try {
    other = option_of(with(option.config, changes), planned);
  } catch (const Error& error) { other.left_out = said_of(error); }
  other.name = option.name;
  return other;
}

Option option_of_many(const TrainConfig& config, const PlannedFor& planned) {
  const std::int64_t count = config.plan.micro_batches;
  if (count <= kSettled) return option_of(config, planned);
  const auto of = [&](std::int64_t few) {
    TrainConfig fewer = config;
    fewer.batch = config.batch / count * few;
    fewer.plan.micro_batches = few;
    return option_of(fewer, planned);
  };
  return extended(of(kSettled - 1), of(kSettled), count);
}

std::vector<Candidate> candidates_of(const std::vector<Option>& options, const PlannedFor& planned) {
  std::vector<Candidate> candidates;
  for (const Option& option : options) {
    Candidate& candidate = candidates.emplace_back(
        Candidate{.name = option.name, .bytes = option.forecast.memory.bytes, .tokens = step_tokens(option.config)});
    if (option.simulated) candidate.seconds = option.simulated->seconds;
    if (!option.has_forecast()) candidate.bytes = planned.memory_limit + 1, candidate.seconds = HUGE_VAL;
  }
  return candidates;
}

Choice choose(const std::vector<Option>& options, const PlannedFor& planned) {
  return choose(candidates_of(options, planned), planned.memory_limit, kTie);
}

std::string as_flags(const Changes& changes) {
  std::string text;
  for (const auto& [key, value] : changes) {
    std::string flag = key;
    std::ranges::replace(flag, '_', '-');
    text += fmt::format("{}--{} {}", text.empty() ? "" : " ", flag, value);
  }
  return text;
}

TrainConfig with(const TrainConfig& config, const Changes& changes) {
  TrainConfig changed = config;
  ConfigTable table = bind(changed);
  for (const auto& [key, value] : changes) table.set_text(key, value, key);
  resolve(changed);
  return changed;
}

std::optional<Option> Rivals::best_of(double times, bool same_link,
                                      const std::function<Option(std::size_t)>& again) const {
  const std::int64_t limit = planned_.memory_limit;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < options_.size(); ++i) {
    const Forecast& now = options_[i].forecast;
    const std::int64_t least = times >= 1 ? now.memory.bytes : now.state;
    if (options_[i].has_forecast() && (limit == 0 || least <= limit) && !is_beaten(options_, i)) order.push_back(i);
  }
  std::vector<double> bounds(options_.size());
  for (const std::size_t i : order) bounds[i] = least_seconds(options_[i], *planned_.cluster, times, same_link);
  const auto least = [&](std::size_t i) { return bounds[i]; };
  std::ranges::stable_sort(order, {}, least);
  std::vector<Option> tried;
  double best = HUGE_VAL;
  for (const std::size_t i : order) {
    if (least(i) > best * (1 + kTie)) break;
    Option option = again(i);
    if (!option.has_forecast()) continue;
    if (limit == 0 || option.forecast.memory.bytes <= limit) best = std::min(best, option.simulated->seconds);
    tried.push_back(std::move(option));
  }
  const Choice choice = choose(tried, planned_);
  if (!choice.best) return std::nullopt;
  return std::move(tried[*choice.best]);
}

std::optional<Option> Rivals::winning(const Changes& changes, double times) const {
  return best_of(times, true, [&](std::size_t i) { return changed(options_[i], changes, planned_); });
}

const Option& Rivals::with_micro_batches(std::size_t index, std::int64_t count) const {
  const auto known = few_micro_batches_.find({index, count});
  if (known != few_micro_batches_.end()) return known->second;
  const TrainConfig& config = options_[index].config;
  const std::int64_t batch = config.batch / config.plan.micro_batches * count;
  const Changes changes{{"batch", std::to_string(batch)}, {"accumulate", std::to_string(count)}};
  return few_micro_batches_.emplace(std::pair(index, count), changed(options_[index], changes, planned_)).first->second;
}

std::optional<Option> Rivals::of_micro_batches(std::int64_t count) const {
  const auto times = static_cast<double>(count) / static_cast<double>(options_.at(0).config.plan.micro_batches);
  return best_of(times, false, [&](std::size_t i) {
    if (count <= kSettled) return with_micro_batches(i, count);
    return extended(with_micro_batches(i, kSettled - 1), with_micro_batches(i, kSettled), count);
  });
}

}  // namespace sherd::plan
