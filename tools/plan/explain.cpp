// A block stands for its like: the one in the middle, which is gathered, computed and reduced as the others are.
#include "tools/plan/explain.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tools/plan/answer.h"
#include "tools/plan/on_threads.h"
#include "tools/plan/report.h"

namespace sherd::plan {

namespace {

std::string ms(double seconds) { return fmt::format("{:.2f} ms", seconds * 1e3); }

/// When a block's calls of one phase run, and what runs beside them.
struct BlockTime {
  double start = HUGE_VAL, end = 0, compute = 0, waits = 0;
  std::map<std::string, double> beside{};  ///< seconds of work on queues, by queue and unit
};

std::string last_block(const TrainConfig& config) { return fmt::format("blocks.{}", config.model.layers / 2); }

bool is_within(std::string_view module, std::string_view block) {
  return module.starts_with(block) && (module.size() == block.size() || module[block.size()] == '.');
}

BlockTime block_time(const Timeline& step, const Simulation::RankSpans& spans, std::string_view block,
                     StepPhase phase) {
  BlockTime time;
  for (const Simulation::Span& span : spans.spans) {
    const Timeline::Entry& entry = step.entries[span.entry];
    if (entry.kind != Timeline::Kind::call || entry.phase != phase || !is_within(step.text(entry.module), block))
      continue;
    time.start = std::min(time.start, span.start);
    time.end = std::max(time.end, span.end);
    time.compute += span.end - span.start;
  }
  for (const Simulation::Span& span : spans.spans) {
    const Timeline::Entry& entry = step.entries[span.entry];
    const double seconds = std::min(span.end, time.end) - std::max(span.start, time.start);
    if (seconds <= 0) continue;
    if (entry.kind == Timeline::Kind::wait) time.waits += seconds;
    if (entry.kind != Timeline::Kind::item) continue;
    const Timeline::Item& item = step.items[entry.index];
    time.beside[fmt::format("{} of {}", step.text(item.work), step.text(item.subject))] += seconds;
  }
  return time;
}

std::string block_text(const Timeline& step, const Simulation& simulated, const std::string& block, StepPhase phase) {
  const BlockTime time = block_time(step, simulated.spans.front(), block, phase);
  if (time.end == 0) return fmt::format("{:<9} {}: none of its calls\n", name(phase), block);
  std::string text = fmt::format("{:<9} {}: {} from {} on, {} compute, {} waiting", name(phase), block,
                                 ms(time.end - time.start), ms(time.start), ms(time.compute), ms(time.waits));
  std::string beside;
  for (const auto& [what, seconds] : time.beside)
    beside += fmt::format("{}{} {}", beside.empty() ? "" : ", ", what, ms(seconds));
  return text + (beside.empty() ? "; no transfer beside it\n" : "; beside it " + beside + "\n");
}

std::string exposed_text(const Simulation& simulated) {
  std::vector<const Simulation::Part*> parts;
  for (const auto& list : {&simulated.axes, &simulated.units})
    for (const Simulation::Part& part : *list)
      if (part.transfer > 0) parts.push_back(&part);
  if (parts.empty()) return "exposed   nothing: all transfers hide\n";
  std::string axes, units;
  for (const Simulation::Part& axis : simulated.axes)
    if (axis.transfer > 0)
      axes += fmt::format("{}{} on {} {} of {}", axes.empty() ? "" : ", ", axis.name, axis.fabric, ms(axis.transfer),
                          ms(axis.seconds));
  std::vector<const Simulation::Part*> worst;
  for (const Simulation::Part& unit : simulated.units)
    if (unit.transfer > 0) worst.push_back(&unit);
  std::ranges::stable_sort(worst, std::greater{}, &Simulation::Part::transfer);
  for (std::size_t i = 0; i < std::min<std::size_t>(3, worst.size()); ++i)
    units += fmt::format("{}{} {}", units.empty() ? "" : ", ", worst[i]->name, ms(worst[i]->transfer));
  return fmt::format("exposed   {}; most of {} units: {}\n", axes, worst.size(), units);
}

struct Knob {
  Changes changes;
  double tokens = 1;  ///< times those of a step now
};

/// Each setting that may be another, as flags.
std::vector<Knob> knobs_of(const TrainConfig& config) {
  std::vector<Knob> knobs;
  TrainConfig copy = config;
  std::map<std::string, std::string> now;
  for (const auto& [key, value] : bind(copy).values())
    now[key] = std::visit([](const auto& v) { return fmt::format("{}", v); }, value);
  const std::pair<const char*, const char*> values[] = {{"prefetch", "true"},
                                                        {"prefetch", "false"},
                                                        {"units", "block"},
                                                        {"units", "fine"},
                                                        {"units", "coarse"},
                                                        {"recompute", "none"},
                                                        {"recompute", "selective"},
                                                        {"recompute", "full"},
                                                        {"param_dtype", "bf16"},
                                                        {"reduce_dtype", "bf16"},
                                                        {"reshard_after_forward", "false"},
                                                        {"offload", "optimizer"},
                                                        {"accumulate_shards", "true"}};
  for (const auto& [key, value] : values)
    if (now.at(key) != value && (std::string_view(key) != "accumulate_shards" || config.plan.micro_batches > 1))
      knobs.push_back({{{key, value}}});
  knobs.push_back(
      {{{"batch", std::to_string(2 * config.batch)}, {"accumulate", std::to_string(2 * config.plan.micro_batches)}},
       2});
  knobs.push_back({{{"batch", std::to_string(2 * config.batch)}}, 2});
  return knobs;
}

struct Tried {
  double gain;  ///< seconds of as many tokens as a step has now
  std::string line;
};

std::optional<Tried> try_knob(const Knob& knob, const Option& option, const PlannedFor& planned) {
  const Option other = changed(option, knob.changes, planned);
  if (!other.has_forecast()) return std::nullopt;
  const double gain = option.simulated->seconds - other.simulated->seconds / knob.tokens;
  const std::int64_t bytes = other.forecast.memory.bytes - option.forecast.memory.bytes;
  const bool fits = planned.memory_limit == 0 || other.forecast.memory.bytes <= planned.memory_limit;
  return Tried{gain, fmt::format("  {:<36} {:>+10.2f} ms {:>+7.1f} %  {}{}{}\n", as_flags(knob.changes), -gain * 1e3,
                                 -100 * gain / option.simulated->seconds, bytes < 0 ? "-" : "+",
                                 format_bytes(std::abs(bytes)), fits ? "" : ", does not fit")};
}

}  // namespace

std::string explanation_of(const Option& option, const PlannedFor& planned, const ModelSize& size) {
  const Timeline& step = option.forecast.step;
  const Simulation simulated = simulate(step, *planned.cluster, {.spans_of = {step.rank}});
  const Simulation::RankTimes& rank = simulated.of(step.rank);
  const std::string block = last_block(option.config);
  const std::optional<double> mfu = mfu_of(size.flops, simulated.seconds, planned);
  std::string text =
      fmt::format("{}: a step takes {}: {} compute in {} calls, {} exposed transfers, {} throttled{}\n", option.name,
                  ms(simulated.seconds), ms(rank.compute), step.calls.size(), ms(rank.transfer), ms(rank.throttle),
                  mfu ? fmt::format("; MFU {:.1f} %", 100 * *mfu) : "");
  for (const StepPhase phase : {StepPhase::forward, StepPhase::backward})
    text += block_text(step, simulated, block, phase);
  text += exposed_text(simulated);
  const nn::Prediction& memory = option.forecast.memory;
  text += fmt::format("peak      {} at {} ({}): {}\n", format_bytes(memory.bytes), moment_text(memory.moment),
                      memory.when, describe(memory.at_peak));
  const std::vector<Knob> knobs = knobs_of(option.config);
  std::vector<std::optional<Tried>> each(knobs.size());
  on_threads(knobs.size(), [&](std::size_t i) { each[i] = try_knob(knobs[i], option, planned); });
  std::vector<Tried> tried;
  for (std::optional<Tried>& one : each)
    if (one) tried.push_back(std::move(*one));
  std::ranges::stable_sort(tried, std::greater{}, &Tried::gain);
  text += "changes   of a step's time and of the peak, by one more flag each, for as many tokens\n";
  for (const Tried& one : tried) text += one.line;
  return text;
}

}  // namespace sherd::plan
