#include "tools/train/train_report.h"

#include <algorithm>
#include <optional>

#include "runtime/exec/purpose.h"
#include "runtime/tensor/indices.h"
#include "tools/train/explained_peak.h"
#include "tools/train/gather_attrs.h"
#include "tools/train/ghost_training.h"

namespace sherd::train {

namespace {

// What a ghost of rank 0 communicates in a step; nothing where a step does other than a ghost makes: it agrees with the
// replicas that are left, or fits a budget by prices, which a ghost does not have.
std::optional<CommCounts> predicted_collectives(Trainer& trainer, const TrainSummary& summary) {
  if (summary.survival || summary.predicted || trainer.group().rank() != 0) return std::nullopt;
  CommCounts counts;
  const PredictedPeak predicted = predict_peak(trainer.config(), 0, trainer.group().size(),
                                               trainer.data().vocabulary().size(), {.evaluates = false});
  for (const CommCounter::Entry& entry : predicted.issued) {
    counts.of(entry.kind).calls += entry.item.calls;
    counts.of(entry.kind).bytes += entry.item.bytes;
  }
  return counts;
}

std::string beside_predicted(const CommCounts::Item& seen, const CommCounts::Item& predicted) {
  return fmt::format("   ghost {:>4} calls {:>9}{}", predicted.calls, format_bytes(predicted.bytes),
                     seen.calls == predicted.calls && seen.bytes == predicted.bytes ? "" : "   DIFFERS");
}

std::string collectives(Trainer& trainer, const TrainSummary& summary) {
  const CommCounts& seen = summary.step_comm;
  const std::optional<CommCounts> predicted = predicted_collectives(trainer, summary);
  std::string text;
  for (const comm::CommOp op :
       {comm::CommOp::all_gather, comm::CommOp::reduce_scatter, comm::CommOp::all_to_all, comm::CommOp::all_reduce})
    text += fmt::format("  {:<15} {:>4} calls {:>9}{}\n", name(op), seen.of(op).calls, format_bytes(seen.of(op).bytes),
                        predicted ? beside_predicted(seen.of(op), predicted->of(op)) : "");
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

std::vector<Peaks> peaks_of_ranks(ProcessGroup& group, const TrainSummary& summary) {
  Peaks own{{summary.peak_bytes.begin(), summary.peak_bytes.end()}};
  own.of_categories.push_back(summary.peak_total);
  if (const auto& predicted = summary.predicted) {
    own.predicted.assign(predicted->bytes.begin(), predicted->bytes.end());
    own.predicted.push_back(predicted->peak);
  }
  return gather_attrs(group, own);
}

std::string memory_table(Trainer& trainer, const std::vector<Peaks>& peaks, const TrainSummary& summary) {
  std::string text = fmt::format("memory, peak per category\n  {:<15}", "");
  for (const std::size_t r : indices(peaks)) text += fmt::format(" {:>10}", fmt::format("rank {}", r));
  text += fmt::format(" {:>16}{}\n", "one rank (state)", summary.predicted ? "  rank 0 predicted" : "");
  const std::int64_t parameters = trainer.model().num_parameters();
  for (const std::size_t c : up_to(kNumCategories)) {
    const auto category = static_cast<MemoryCategory>(c);
    text += fmt::format("  {:<15}", name(category));
    for (const Peaks& rank : peaks) text += fmt::format(" {:>10}", format_bytes(rank.of_categories[c]));
    text += fmt::format(" {:>16}", one_rank_figure(category, parameters));
    if (summary.predicted) text += fmt::format(" {:>17}", format_bytes(summary.predicted->bytes[c]));
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

// What was given, predicted and measured.
std::string budget_line(const TrainConfig& config, const std::vector<Peaks>& peaks, const TrainSummary& summary) {
  const CompiledStep::Predicted& predicted = *summary.predicted;
  std::string text =
      fmt::format("memory budget   {} given; predicted {}, measured {}", config.plan.memory_budget.text(),
                  format_bytes(predicted.peak), format_bytes(summary.peak_total));
  if (const double measured = summary.times.steps.p50; measured > 0)
    text += fmt::format("; {:.3g} ms a step predicted, {:.3g} measured ({:+.1f} %)", predicted.seconds * 1e3,
                        measured * 1e3, 100 * (predicted.seconds / measured - 1));
  return text + "\n" + other_than_predicted(peaks);
}

}  // namespace

std::string train_report(Trainer& trainer, const TrainConfig& config, const TrainSummary& summary) {
  const PurposeScope purpose("train_report");
  const std::vector<Peaks> peaks = peaks_of_ranks(trainer.group(), summary);
  std::string text = fmt::format("loss {:.4f} at the first step, {:.4f} mean of the last 10", summary.first_loss,
                                 summary.last_losses_mean);
  if (summary.val_loss) text += fmt::format(", validation {:.4f}", *summary.val_loss);
  if (summary.loss_scale)
    text += fmt::format("; loss scale {}, {} steps skipped", *summary.loss_scale, summary.skipped_steps);
  else if (summary.skipped_steps > 0) text += fmt::format("; {} steps skipped", summary.skipped_steps);
  if (summary.rollbacks > 0) text += fmt::format("; went back to a save {} times", summary.rollbacks);
  if (!summary.state_hash.empty()) text += fmt::format("; hash {}", summary.state_hash);
  text += fmt::format("; {:.1f} s\n", summary.seconds) + memory_table(trainer, peaks, summary);
  if (summary.peak) text += "memory of rank 0 at its peak\n" + print_picture(*summary.peak, 12);
  if (trainer.group().size() > 1) {
    text += "collectives of the last step\n" + collectives(trainer, summary);
    if (summary.comm.total > 0)
      text += fmt::format(
          "communication   {:.1f} s, of which {:.1f} s ({:.0f} %) were exposed: rank 0 waited {:.1f} s for transfers "
          "and {:.1f} s for ranks that came later\n",
          summary.comm.total, summary.comm.exposed, 100 * summary.comm.exposed / summary.comm.total,
          summary.comm.transfer(), summary.comm.skew);
  }
  text += print_run_times(summary.times);
  if (summary.predicted) text += budget_line(config, peaks, summary);
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
