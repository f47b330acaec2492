#include "tools/train/train_report.h"

#include <algorithm>
#include <optional>

#include "runtime/exec/purpose.h"
#include "runtime/tensor/indices.h"
#include "tools/train/explained_peak.h"
#include "tools/train/gather_attrs.h"
#include "tools/train/predicted_run.h"

namespace sherd::train {

namespace {

std::string beside_predicted(const CommCounts::Item& seen, const CommCounts::Item& predicted) {
  return fmt::format("   ghost {:>4} calls {:>9}{}", predicted.calls, format_bytes(predicted.bytes),
                     seen.calls == predicted.calls && seen.bytes == predicted.bytes ? "" : "   DIFFERS");
}

std::string collectives(const TrainSummary& summary, const std::optional<PredictedRun>& predicted) {
  const CommCounts& seen = summary.step_comm;
  std::string text;
  for (const comm::CommOp op :
       {comm::CommOp::all_gather, comm::CommOp::reduce_scatter, comm::CommOp::all_to_all, comm::CommOp::all_reduce})
    text += fmt::format("  {:<15} {:>4} calls {:>9}{}\n", name(op), seen.of(op).calls, format_bytes(seen.of(op).bytes),
                        predicted && predicted->comm ? beside_predicted(seen.of(op), predicted->comm->of(op)) : "");
  return text;
}

struct Peaks {
  std::vector<std::int64_t> of_categories{}, predicted{};
  static constexpr AttrField fields[] = {attr<&Peaks::of_categories>("of_categories"),
                                         attr<&Peaks::predicted>("predicted")};
};

// State of one rank without sharding; what a step computes has no closed form, so activations have no figure.
std::string one_rank_figure(MemoryCategory category, std::int64_t num_parameters) {
  switch (category) {
    case MemoryCategory::parameters:
    case MemoryCategory::gradients: return format_bytes(4 * num_parameters);
    case MemoryCategory::optimizer: return format_bytes(8 * num_parameters);
    case MemoryCategory::unsharded: return format_bytes(0);
    default: return "-";
  }
}

std::vector<Peaks> peaks_of_ranks(ProcessGroup& group, const TrainSummary& summary,
                                  const std::optional<PredictedRun>& predicted) {
  Peaks own{{summary.peak_bytes.begin(), summary.peak_bytes.end()}};
  own.of_categories.push_back(summary.peak_total);
  if (predicted) {
    own.predicted.assign(predicted->bytes.begin(), predicted->bytes.end());
    own.predicted.push_back(predicted->peak);
  }
  return gather_attrs(group, own);
}

std::string memory_table(Trainer& trainer, const std::vector<Peaks>& peaks,
                         const std::optional<PredictedRun>& predicted) {
  std::string text = fmt::format("memory, peak per category\n  {:<15}", "");
  for (const std::size_t r : indices(peaks)) text += fmt::format(" {:>10}", fmt::format("rank {}", r));
  text += fmt::format(" {:>16}{}\n", "one rank (state)", predicted ? "  rank 0 predicted" : "");
  const std::int64_t parameters = trainer.model().num_parameters();
  for (const std::size_t c : up_to(kNumCategories)) {
    const auto category = static_cast<MemoryCategory>(c);
    text += fmt::format("  {:<15}", name(category));
    for (const Peaks& rank : peaks) text += fmt::format(" {:>10}", format_bytes(rank.of_categories[c]));
    text += fmt::format(" {:>16}", one_rank_figure(category, parameters));
    if (predicted) text += fmt::format(" {:>17}", format_bytes(predicted->bytes[c]));
    text += "\n";
  }
  return text;
}

// Where a rank has held other bytes than predicted, to the byte.
std::string other_than_predicted(const std::vector<Peaks>& peaks) {
  std::string text;
  for (const std::size_t r : indices(peaks))
    for (const std::size_t c : indices(peaks[r].predicted))
      if (const std::int64_t seen = peaks[r].of_categories[c], predicted = peaks[r].predicted[c]; seen != predicted)
        text +=
            fmt::format("  rank {:<10} {} bytes predicted{}, {} measured   DIFFERS\n", r, predicted,
                        c < kNumCategories ? fmt::format(" of {}", name(static_cast<MemoryCategory>(c))) : "", seen);
  return text;
}

// What was predicted and measured, within a budget what was given.
std::string predicted_line(const TrainConfig& config, const std::vector<Peaks>& peaks, const TrainSummary& summary,
                           const PredictedRun& predicted) {
  const std::string peak = format_bytes(predicted.peak), measured_peak = format_bytes(summary.peak_total);
  std::string text = config.plan.memory_budget.is_set()
                         ? fmt::format("memory budget   {} given; predicted {}, measured {}",
                                       config.plan.memory_budget.text(), peak, measured_peak)
                         : fmt::format("predicted       a peak of {}, measured {}", peak, measured_peak);
  const StepJitter& steps = summary.times.steps;
  if (predicted.seconds && steps.p50 > 0)
    text += fmt::format("; {:.3g} ms a step predicted, {:.3g} measured ({:+.1f} %)", *predicted.seconds * 1e3,
                        steps.p50 * 1e3, 100 * (*predicted.seconds / steps.p50 - 1));
  if (predicted.exposed && summary.comm.total > 0 && steps.count > 0)
    text += fmt::format("; {:.3g} ms exposed predicted, {:.3g} measured", *predicted.exposed * 1e3,
                        summary.comm.exposed / static_cast<double>(steps.count) * 1e3);
  // The first steps hold less than is predicted, and libraries of a device more.
  const bool is_exact = config.plan.memory_budget.is_set() || (steps.count > 0 && config.plan.device == Device::cpu());
  return fmt::format("{}; {}\n{}", text, predicted.prices, is_exact ? other_than_predicted(peaks) : "");
}

}  // namespace

std::string train_report(Trainer& trainer, const TrainConfig& config, const TrainSummary& summary) {
  const PurposeScope purpose("train_report");
  const std::optional<PredictedRun> predicted = predict_run(trainer);
  const std::vector<Peaks> peaks = peaks_of_ranks(trainer.group(), summary, predicted);
  std::string text = fmt::format("loss {:.4f} at the first step, {:.4f} mean of the last 10", summary.first_loss,
                                 summary.last_losses_mean);
  if (summary.val_loss) text += fmt::format(", validation {:.4f}", *summary.val_loss);
  if (summary.loss_scale)
    text += fmt::format("; loss scale {}, {} steps skipped", *summary.loss_scale, summary.skipped_steps);
  else if (summary.skipped_steps > 0) text += fmt::format("; {} steps skipped", summary.skipped_steps);
  if (summary.rollbacks > 0) text += fmt::format("; went back to a save {} times", summary.rollbacks);
  if (!summary.state_hash.empty()) text += fmt::format("; hash {}", summary.state_hash);
  text += fmt::format("; {:.1f} s\n", summary.seconds) + memory_table(trainer, peaks, predicted);
  if (summary.peak) text += "memory of rank 0 at its peak\n" + print_picture(*summary.peak, 12);
  if (trainer.group().size() > 1) {
    text += "collectives of the last step\n" + collectives(summary, predicted);
    if (summary.comm.total > 0)
      text += fmt::format(
          "communication   {:.1f} s over all queues, of which {:.1f} s ({:.0f} %) were exposed: rank 0 waited {:.1f} s "
          "for transfers and {:.1f} s for ranks that came later\n",
          summary.comm.total, summary.comm.exposed, 100 * summary.comm.exposed / summary.comm.total,
          summary.comm.transfer(), summary.comm.skew);
  }
  text += print_run_times(summary.times);
  if (predicted) text += predicted_line(config, peaks, summary, *predicted);
  if (!config.metrics.empty()) text += fmt::format("metrics     {}\n", config.metrics);
  if (!config.trace.empty()) text += fmt::format("trace       {}\n", config.trace);
  if (summary.saves)
    text += fmt::format(
        "saves           {} beside training, {} of rank 0: {} copied before they changed, in {:.3f} s; {:.3f} s waited "
        "for saves\n",
        summary.saves->saves, format_bytes(summary.saves->bytes), format_bytes(summary.saves->copied_bytes),
        summary.saves->copy_seconds, summary.saves->waited_seconds);
  if (summary.survival)
    text += fmt::format("replicas    {} lost and {} back while training went on; {:.2f} s and {:.2f} s stood still\n",
                        summary.survival->lost, summary.survival->returned, summary.survival->lost_seconds,
                        summary.survival->returned_seconds);
  if (!config.save.empty()) text += fmt::format("checkpoint  {}\n", config.save);
  return trainer.group().rank() == 0 ? text : std::string();
}

}  // namespace sherd::train
