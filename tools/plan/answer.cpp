// Sentences are made from the same numbers that the table has. What binds is looked for in this order: memory, if a row
// that does not fit would win; the link, if the thread waits for transfers for longer than the error of a prediction;
// calls, if what they cost beside their work is a third of the thread's time; else the products themselves.
#include "tools/plan/answer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/ranges.h>

#include "runtime/memory/accounting.h"

namespace sherd::plan {

namespace {

constexpr double kExposed = 0.05, kCalls = 1.0 / 3;

std::string milliseconds(double seconds) {
  const double ms = seconds * 1e3;
  return fmt::format("{:.{}f} ms", ms, ms < 9.995 ? 2 : ms < 99.95 ? 1 : 0);
}

std::string percent(double share) { return fmt::format("{:.{}f} %", 100 * share, share < 0.0995 ? 1 : 0); }

/// The axis whose collectives the thread waits for longest.
const Simulation::Part* worst_axis(const Simulation& simulated) {
  const auto worst = std::ranges::max_element(simulated.axes, {}, &Simulation::Part::transfer);
  return worst == simulated.axes.end() ? nullptr : &*worst;
}

/// Returns the seconds that the calls of a step cost beside their work.
double call_cost(const Option& option, const Cluster& cluster) {
  return static_cast<double>(option.forecast.step.calls.size()) * cluster.device.call_seconds * cluster.software;
}

Bound bound_of(const Option& option, const Choice& choice, const Cluster& cluster) {
  const Simulation::RankTimes& rank = option.simulated->of(0);
  if (choice.refused) return Bound::memory;
  if (rank.transfer + rank.throttle > kExposed * option.simulated->seconds) return Bound::link;
  return call_cost(option, cluster) > kCalls * rank.compute ? Bound::calls : Bound::compute;
}

std::string flags_of(const Option& option) {
  const nn::TrainingPlan& plan = option.config.plan;
  std::string text = fmt::format("--mesh {} --strategy {}", plan.mesh.text(), plan.strategy.text());
  if (plan.reshard_after_forward.ranks())
    text += fmt::format(" --reshard-after-forward {}", plan.reshard_after_forward.text());
  if (plan.recompute.text() != "none") text += fmt::format(" --recompute {}", plan.recompute.text());
  return text;
}

std::string room_text(const Option& option, const PlannedFor& planned) {
  if (planned.memory_limit == 0) return format_bytes(option.forecast.memory.bytes);
  return fmt::format("{} of {}", format_bytes(option.forecast.memory.bytes), format_bytes(planned.memory_limit));
}

std::string reason(const Option& best, Bound bound, const Choice& choice, const std::vector<Option>& options,
                   const PlannedFor& planned) {
  const Simulation& simulated = *best.simulated;
  const Simulation::RankTimes& rank = simulated.of(0);
  switch (bound) {
    case Bound::memory: {
      const Option& refused = options[*choice.refused];
      return fmt::format("Memory binds: {} would take {}, and needs {} of {}.", refused.name,
                         milliseconds(refused.simulated->seconds), format_bytes(refused.forecast.memory.bytes),
                         format_bytes(planned.memory_limit));
    }
    case Bound::link: {
      const Simulation::Part* const axis = worst_axis(simulated);
      return fmt::format("The link binds: {} of the step are exposed transfers, most of them over {} on {}.",
                         percent((rank.transfer + rank.throttle) / simulated.seconds), axis ? axis->name : "",
                         axis ? axis->fabric : "");
    }
    case Bound::calls:
      return fmt::format("Calls bind: {} calls cost {} beside their work.", best.forecast.step.calls.size(),
                         milliseconds(call_cost(best, *planned.cluster)));
    case Bound::compute: break;
  }
  return fmt::format("Compute binds: {} of the step; {} are exposed transfers.",
                     percent(rank.compute / simulated.seconds),
                     percent((rank.transfer + rank.throttle) / simulated.seconds));
}

std::string loses(const Option& other, const Option& best) {
  const double slower = other.simulated->seconds / best.simulated->seconds - 1;
  const std::int64_t more = other.forecast.memory.bytes - best.forecast.memory.bytes;
  return fmt::format(
      "{} ({}, {} and {} {} memory)", other.name, milliseconds(other.simulated->seconds),
      slower < 0 ? fmt::format("{} faster", percent(-slower)) : fmt::format("{} slower", percent(slower)),
      format_bytes(std::abs(more)), more < 0 ? "less" : "more");
}

std::string none_can_be_run(const std::vector<Option>& options) {
  return options.empty() ? "No row can be run." : fmt::format("No row can be run: {}.", options.front().left_out);
}

std::vector<std::string> by_memory(const std::vector<Option>& options, const PlannedFor& planned) {
  std::size_t fits = 0;
  const Option* least = nullptr;
  for (const Option& option : options) {
    if (!option.has_forecast()) continue;
    if (planned.memory_limit == 0 || option.forecast.memory.bytes <= planned.memory_limit) ++fits;
    if (!least || option.forecast.memory.bytes < least->forecast.memory.bytes) least = &option;
  }
  if (!least) return {none_can_be_run(options)};
  return {fmt::format(
      "No device is named, so nothing has a time: {} of {} rows fit{}, and {} holds least, {}. Give "
      "--device-model NAME for a recommendation.",
      fits, options.size(), planned.memory_limit > 0 ? fmt::format(" into {}", format_bytes(planned.memory_limit)) : "",
      least->name, format_bytes(least->forecast.memory.bytes))};
}

}  // namespace

std::string_view name(Bound bound) {
  constexpr std::array<std::string_view, 4> names{"compute", "link", "calls", "memory"};
  return names[static_cast<std::size_t>(bound)];
}

std::optional<double> mfu_of(double flops, double seconds, const PlannedFor& planned) {
  const double peak = planned.cluster ? planned.cluster->device.peak_flops : 0;
  if (peak <= 0) return std::nullopt;
  return flops / (seconds * peak * planned.ranks);
}

Answer answer_of(const std::vector<Option>& options, const PlannedFor& planned, const ModelSize& size) {
  Answer answer;
  if (!planned.cluster) {
    answer.sentences = by_memory(options, planned);
    return answer;
  }
  answer.choice = choose(options, planned);
  if (!answer.choice.best) {
    const auto least = std::ranges::min_element(options, {}, [](const Option& option) {
      return option.has_forecast() ? option.forecast.memory.bytes : std::numeric_limits<std::int64_t>::max();
    });
    answer.bound = Bound::memory;
    answer.sentences.push_back(
        least == options.end() || !least->has_forecast()
            ? none_can_be_run(options)
            : fmt::format("No row fits into {}: {} holds least, {}. Take more ranks, fewer sequences of a rank, or a "
                          "mesh with tp.",
                          format_bytes(planned.memory_limit), least->name, format_bytes(least->forecast.memory.bytes)));
    return answer;
  }
  const Option& best = options[*answer.choice.best];
  answer.bound = bound_of(best, answer.choice, *planned.cluster);
  const double seconds = best.simulated->seconds, tokens = static_cast<double>(step_tokens(best.config));
  const std::optional<double> mfu = mfu_of(size.flops, seconds, planned);
  answer.sentences.push_back(fmt::format("Take {}: {} for a step, {:.0f} tokens/s of a rank{}, {}.", best.name,
                                         milliseconds(seconds), tokens / seconds / planned.ranks,
                                         mfu ? ", MFU " + percent(*mfu) : "", room_text(best, planned)));
  answer.sentences.push_back(reason(best, answer.bound, answer.choice, options, planned));
  if (!answer.choice.ties.empty()) {
    std::vector<std::string> ties;
    for (const std::size_t i : answer.choice.ties) ties.push_back(loses(options[i], best));
    answer.sentences.push_back(
        fmt::format("Ties within {}, decided by memory: {}.", percent(kTie), fmt::join(ties, "; ")));
  }
  if (answer.choice.runner_up)
    answer.sentences.push_back(fmt::format("Runner-up: {}.", loses(options[*answer.choice.runner_up], best)));
  answer.sentences.push_back(fmt::format("Run it with {}{}.", flags_of(best), more_flags(best.config, planned.base)));
  return answer;
}

}  // namespace sherd::plan
