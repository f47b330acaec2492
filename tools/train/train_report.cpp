#include "tools/train/train_report.h"

#include <algorithm>
#include <optional>

#include "nn/parallel/extensions/blocks.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/plan/apply.h"
#include "runtime/exec/purpose.h"
#include "runtime/op/rows/optimizer_attrs.h"
#include "tools/train/explained_peak.h"
#include "tools/train/gather_attrs.h"

namespace sherd {

namespace {

// Values of one byte and a scale for each block of each shard (nn/parallel/extensions). Vectors are gathered as the
// optimizer has them, but reduced like all others.
std::int64_t bytes_in_8_bits(const UnitLayout& unit, bool has_vectors) {
  std::int64_t bytes = 0;
  for (const UnitPiece& piece : unit.pieces)
    for (const std::int64_t count : unit.counts(piece))
      bytes += piece.shape.size() > 1 || has_vectors ? count + 4 * nn::num_blocks(count, nn::kQuantizationBlock)
                                                     : count * byte_size(piece.dtype);
  return bytes;
}

// The formula is that of one axis, and of parameters that are gathered in every pass, among all its ranks.
bool has_formula(const Trainer& trainer, const TrainConfig& config) {
  return trainer.mesh().root().ndim() == 1 && nn::unit_policy(config.plan, {}).parameters != nn::ShardedOver::none &&
         !config.plan.reshard_after_forward.ranks();
}

// What one step should communicate where parameters are sharded: every group is gathered for forward, resharding groups
// again for backward, and every group's gradients are reduced once, after the last micro-batch, or once for each; then
// one number for the norm and one for the loss.
CommCounts formula(Trainer& trainer, const TrainConfig& config) {
  CommCounts expected;
  if (trainer.group().size() == 1) return expected;
  const nn::TrainingPlan plan = nn::on_ranks(config.plan, trainer.mesh().num_data_ranks());
  const auto after_forward = nn::unit_policy(plan, {}).reshard_after_forward;
  const bool reshards = !after_forward || !after_forward->is_off();
  const auto units = nn::units(trainer.model());
  const std::int64_t reductions = plan.accumulate_shards ? plan.micro_batches : 1;
  const std::int64_t made = byte_size(plan.param_dtype), summed = nn::waiting_gradient_bytes(plan);
  const bool gathers_8_bits = !plan.gather.is_exact(), reduces_8_bits = !plan.reduce.is_exact();
  CommCounts::Item& reduction = reduces_8_bits ? expected.all_to_all : expected.reduce_scatter;
  for (const nn::UnitHandle& unit : units) {
    std::int64_t elements = 0;
    for (const nn::Parameter* p : unit.parameters()) elements += p->numel();
    const bool is_root = unit == nn::unit_of(trainer.model());
    const std::int64_t gathers = (!is_root && reshards ? 2 : 1) * plan.micro_batches;
    expected.all_gather.calls += gathers;
    expected.all_gather.bytes += gathers * (gathers_8_bits ? bytes_in_8_bits(unit.layout(), false) : elements * made);
    reduction.calls += reductions;
    reduction.bytes += reductions * (reduces_8_bits ? bytes_in_8_bits(unit.layout(), true)
                                                    : elements * (reductions < plan.micro_batches ? summed : made));
  }
  // The squared norm in f64, or the words of its exact sum; the loss in f32.
  expected.all_reduce = {2, (plan.numerics.layout_free() ? 8 * kExactWords : 8) + 4};
  return expected;
}

std::string beside_formula(const CommCounts::Item& seen, const CommCounts::Item& expected) {
  return fmt::format("   formula {:>4} calls {:>9}{}", expected.calls, format_bytes(expected.bytes),
                     seen.calls == expected.calls && seen.bytes == expected.bytes ? "" : "   DIFFERS");
}

std::string collectives(Trainer& trainer, const TrainConfig& config, const CommCounts& seen) {
  std::optional<CommCounts> expected;
  if (has_formula(trainer, config)) expected = formula(trainer, config);
  std::string text;
  for (const comm::CommOp op :
       {comm::CommOp::all_gather, comm::CommOp::reduce_scatter, comm::CommOp::all_to_all, comm::CommOp::all_reduce})
    text += fmt::format("  {:<15} {:>4} calls {:>9}{}\n", name(op), seen.of(op).calls, format_bytes(seen.of(op).bytes),
                        expected ? beside_formula(seen.of(op), expected->of(op)) : "");
  return text;
}

struct Peaks {
  std::vector<std::int64_t> of_categories{};
  static constexpr AttrField fields[] = {attr<&Peaks::of_categories>("of_categories")};
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

std::string memory_table(Trainer& trainer, const TrainSummary& summary) {
  const std::vector<Peaks> peaks =
      gather_attrs(trainer.group(), Peaks{{summary.peak_bytes.begin(), summary.peak_bytes.end()}});
  std::string text = fmt::format("memory, peak per category\n  {:<15}", "");
  for (std::size_t r = 0; r < peaks.size(); ++r) text += fmt::format(" {:>10}", fmt::format("rank {}", r));
  text += fmt::format(" {:>16}\n", "one rank (state)");
  const std::int64_t parameters = trainer.model().num_parameters();
  for (std::size_t c = 0; c < kNumCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    text += fmt::format("  {:<15}", name(category));
    for (const Peaks& rank : peaks) text += fmt::format(" {:>10}", format_bytes(rank.of_categories[c]));
    text += fmt::format(" {:>16}\n", one_rank_figure(category, parameters));
  }
  return text;
}

}  // namespace

std::string train_report(Trainer& trainer, const TrainConfig& config, const TrainSummary& summary) {
  const PurposeScope purpose("train_report");
  std::string text = fmt::format("loss {:.4f} at the first step, {:.4f} mean of the last 10", summary.first_loss,
                                 summary.last_losses_mean);
  if (summary.val_loss) text += fmt::format(", validation {:.4f}", *summary.val_loss);
  if (summary.loss_scale)
    text += fmt::format("; loss scale {}, {} steps skipped", *summary.loss_scale, summary.skipped_steps);
  else if (summary.skipped_steps > 0) text += fmt::format("; {} steps skipped", summary.skipped_steps);
  if (summary.rollbacks > 0) text += fmt::format("; went back to a save {} times", summary.rollbacks);
  if (!summary.state_hash.empty()) text += fmt::format("; hash {}", summary.state_hash);
  text += fmt::format("; {:.1f} s\n", summary.seconds) + memory_table(trainer, summary);
  if (summary.peak) text += "memory of rank 0 at its peak\n" + print_picture(*summary.peak, 12);
  if (trainer.group().size() > 1) {
    text += "collectives of the last step\n" + collectives(trainer, config, summary.step_comm);
    if (summary.comm.total > 0)
      text += fmt::format(
          "communication   {:.1f} s, of which {:.1f} s ({:.0f} %) were exposed: rank 0 waited {:.1f} s for transfers "
          "and {:.1f} s for ranks that came later\n",
          summary.comm.total, summary.comm.exposed, 100 * summary.comm.exposed / summary.comm.total,
          summary.comm.transfer(), summary.comm.skew);
  }
  text += print_run_times(summary.times);
  if (!config.metrics.empty()) text += fmt::format("metrics     {}\n", config.metrics);
  if (!config.trace.empty()) text += fmt::format("trace       {}\n", config.trace);
  if (summary.saves)
    text += fmt::format(
        "saves           {} beside training, {} of rank 0: {} copied before they changed, in {:.3f} s; {:.3f} s waited "
        "for saves\n",
        summary.saves->saves, format_bytes(summary.saves->bytes), format_bytes(summary.saves->cost.copied_bytes),
        summary.saves->cost.seconds, summary.saves->waited_seconds);
  if (summary.survival)
    text += fmt::format("replicas    {} lost and {} back while training went on; {:.2f} s and {:.2f} s stood still\n",
                        summary.survival->lost, summary.survival->returned, summary.survival->lost_seconds,
                        summary.survival->returned_seconds);
  if (!config.save.empty()) text += fmt::format("checkpoint  {}\n", config.save);
  return trainer.group().rank() == 0 ? text : std::string();
}

}  // namespace sherd
