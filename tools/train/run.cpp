// Numbers that must not depend on the number of ranks: the global batch (drawn by sample index), the initial bits
// (drawn by parameter name and element), the loss (every rank's mean over equally many tokens, averaged over ranks).
#include "tools/train/run.h"

#include <algorithm>

#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/picks.h"
#include "runtime/exec/purpose.h"
#include "runtime/exec/running_op.h"
#include "runtime/exec/step_clock.h"
#include "runtime/exec/trace.h"
#include "runtime/op/core/host_reads.h"
#include "runtime/op/rows/ops.h"
#include "tools/train/memory_advice.h"
#include "tools/train/run_text.h"
#include "tools/train/sharding.h"

namespace sherd::train {

std::pair<Tensor, Tensor> Run::batch_of(std::int64_t number) const {
  const TraceSpan span("batch");
  const StepClock::Scope part(step_clock(), StepPart::data);
  auto [tokens, targets] = data.training_batch(static_cast<std::uint64_t>(config.seed), state.skipped.batch_of(number),
                                               rows, config.model.sequence);
  return {to(std::move(tokens), device), to(std::move(targets), device)};
}

TrainStep::Result Run::update(std::int64_t number) {
  step->set_step(number);
  const auto [tokens, targets] = batch_of(number);
  return step->update(tokens, targets);
}

std::optional<double> Run::evaluate(const RunStops& stops) {
  const StageMark stage("an evaluation");
  const StepClock::Scope part(step_clock(), StepPart::evaluation);
  const PurposeScope purpose("Trainer::evaluate");
  const std::int64_t sequence = config.model.sequence;
  std::int64_t windows = data->num_validation_windows(sequence);
  if (config.eval_batches > 0) windows = std::min(windows, config.eval_batches * config.batch);
  double loss_sum = 0, count = 0;
  HostReads reads;
  const std::int64_t micro = rows.micro;  // no more at once than in a step
  // Every rank runs equally many forwards; windows past the end are padding that no target counts.
  bool stopped = false;
  for (std::int64_t start = 0; start < windows && !stopped; start += micro * mesh->num_data_ranks()) {
    const std::int64_t first = start + mesh->data_rank() * micro;
    const std::int64_t real = std::clamp<std::int64_t>(windows - first, 0, micro);
    auto [tokens, targets] = read_windows(micro, sequence, [&](std::int64_t i, std::span<std::int32_t> window) {
      if (i < real) data->validation_window(first + i, window);
    });
    std::fill_n(targets.mutable_data<std::int32_t>() + real * sequence, (micro - real) * sequence, -100);
    const auto tokens_here = static_cast<double>(real * sequence);
    const Tensor loss = step->evaluate(to(std::move(tokens), device), to(std::move(targets), device));
    if (real > 0)
      reads.push({loss}, [&loss_sum, tokens_here](std::span<const double> v) { loss_sum += v[0] * tokens_here; });
    count += tokens_here;
    stopped = stops.stop() != 0;
  }
  reads.finish();
  step->model().train(true);
  if (stopped) return std::nullopt;
  double totals[] = {loss_sum, count};
  mesh->data_group().host().all_reduce({in_place(totals, DType::f64, 2)}, {});
  return totals[0] / totals[1];
}

void Run::save(std::int64_t updates) {
  const StageMark stage("a save");
  const StepClock::Scope part(step_clock(), StepPart::save);
  const PurposeScope purpose("Trainer::save");
  ckpt::Manifest manifest;
  note_state(manifest, state, step->scaler() == nullptr);
  manifest.step = updates;
  TrainConfig asked = config;
  asked.plan.mesh = asked_mesh;
  manifest.config = to_toml(asked);
  manifest.plan = print(asked.plan);
  data.note(manifest);
  const bool is_ordered = group->abilities().ordered_sum;
  const std::string sums = is_ordered ? sums_text(config.plan, group->size()) : "";
  manifest.state[kSumsOfSave] =
      config.plan.numerics.layout_free()
          ? sums
          : fmt::format("{}{}{}{}", is_ordered ? "tree" : kFastSums,
                        config.plan.accumulate_shards ? "" : kSumsOfNeighbours, sums.empty() ? "" : ": ", sums);
  manifest.state[kKernelsOfSave] = kernels_text(config.plan);
  if (device != Device::cpu()) {
    Picks of_all;
    for (const std::string& own : gather_text(*group, picks_of_rank().text())) of_all.load(own);
    manifest.state[kPicksOfSave] = of_all.text();
  }
  saves->save(std::move(manifest), training_state());
}

void Run::explain(OutOfMemory& error) noexcept {
  const Accounting& account = RankContext::current().allocator(device).accounting();
  const bool has_libraries = device != Device::cpu();
  explain_out_of_memory(
      error, config, *group, data->vocabulary().size(),
      {.most = account.total_peak(), .of_libraries = has_libraries ? account.current(MemoryCategory::workspace) : 0});
}

// What a step has left in queues, of units that are being gathered too, comes to its end first.
ckpt::CarriedState Run::carry() {
  RankContext::current().drain_queues();
  return ckpt::CarriedState::take(training_state());
}

}  // namespace sherd::train
