#include "tools/train/predicted_run.h"

#include "runtime/tensor/indices.h"
#include "tools/train/ghost_step.h"
#include "tools/train/run.h"
#include "tools/train/step_prices.h"

namespace sherd::train {

namespace {

void price(PredictedRun& predicted, const Timeline& step, const TrainConfig& config, int ranks) {
  const StepPrices prices(config.plan.device, ranks);
  predicted.prices = prices.text();
  if (!prices.are_known()) return;
  try {
    const StepPrices::Times times = prices.of(step, config.link);
    if (times.is_extrapolated) predicted.prices += "; extrapolated beyond the sizes and types that it has measured";
    predicted.seconds = times.seconds;
    predicted.exposed = times.exposed;
  } catch (const Error& error) {  // a prediction is no reason to end a run
    predicted.prices += fmt::format("; not priced: {}", error.message());
  }
}

std::string line(std::string_view name, const std::string& text) { return fmt::format("  {:<15} {}\n", name, text); }

std::string moment_text(const MemoryLog::Moment& moment) {
  std::string text(name(moment.phase));
  for (const std::string& part : {moment.module, moment.op})
    if (!part.empty()) text += ", " + part;
  return text;
}

}  // namespace

std::optional<PredictedRun> predict_run(Trainer& trainer) {
  Run& run = trainer.opened();
  if (run.regroup.survives()) return std::nullopt;
  if (const auto own = run.step->predicted()) {
    PredictedRun predicted{
        .bytes = own->bytes, .peak = own->peak, .prices = "by prices measured before the first step"};
    if (own->seconds > 0) predicted.seconds = own->seconds;
    return predicted;
  }
  const int ranks = run.group->size();
  const std::int64_t vocabulary = run.data->vocabulary().size();
  // An evaluation may hold more than a step, and leaves less to gather for the next one.
  const PredictedPeak memory = predict_peak(run.config, run.group->rank(), ranks, vocabulary);
  const GhostStep ghost = ghost_step(run.config, run.group->rank(), ranks, vocabulary);
  PredictedRun predicted{.bytes = memory.peak, .peak = memory.bytes, .moment = memory.moment, .comm = CommCounts()};
  for (const CommCounter::Entry& entry : ghost.memory.issued) {
    predicted.comm->of(entry.kind).calls += entry.item.calls;
    predicted.comm->of(entry.kind).bytes += entry.item.bytes;
  }
  price(predicted, ghost.timeline, run.config, ranks);
  return predicted;
}

std::string print_predicted(const PredictedRun& predicted, const TrainConfig& config) {
  std::string text = fmt::format("predicted for rank 0; {}\n", predicted.prices);
  for (const std::size_t c : up_to(kNumCategories))
    if (predicted.bytes[c] > 0) text += line(name(static_cast<MemoryCategory>(c)), format_bytes(predicted.bytes[c]));
  const bool has_moment = !predicted.moment.op.empty();
  text +=
      line("peak of all", format_bytes(predicted.peak) + (has_moment ? " in " + moment_text(predicted.moment) : ""));
  if (!predicted.seconds) return text;
  const double tokens = static_cast<double>(config.batch * config.model.sequence);
  return text + line("step",
                     fmt::format(
                         "{:.3g} ms{}, {:.0f} tokens/s", 1e3 * *predicted.seconds,
                         predicted.exposed ? fmt::format(", of which {:.3g} ms exposed", 1e3 * *predicted.exposed) : "",
                         tokens / *predicted.seconds));
}

}  // namespace sherd::train
