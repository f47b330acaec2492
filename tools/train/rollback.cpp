#include "tools/train/rollback.h"

#include <utility>

#include "nn/non_finite.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/step_clock.h"
#include "tools/train/exit_status.h"

namespace sherd::train {

void fail_diverged(Run& run, const Divergence& found) {
  std::string unsaved;
  try {
    run.saves->finish();  // of a step before
  } catch (const CommError&) { throw; } catch (const Error& error) {
    unsaved = fmt::format(", and the save before it has failed: {}", error.message());
  }
  const StepMetrics& metrics = found.metrics;
  if (found.is_spike)
    throw ExitError(kDiverged, fmt::format("the run has diverged in step {}: {}. Nothing was saved since{}",
                                           metrics.step, found.what, unsaved));
  std::string where;
  try {
    run.step->set_step(metrics.step - 1);
    where = nn::first_non_finite(run.step->model(), *run.group, [&] {
      const auto [tokens, targets] = run.batch_of(metrics.step - 1);
      run.step->forward_backward(tokens, targets);
    });
    where = where.empty() ? "computed once more, everything is finite: what came after it has changed the parameters"
                          : fmt::format("the first value that is not finite is in {}", where);
  } catch (const std::exception& error) { where = fmt::format("where it began is not known: {}", error.what()); }
  throw ExitError(
      kDiverged,
      fmt::format("the run has diverged in step {}: {}; {}. Nothing was saved since{}; a lower optimizer.lr, a "
                  "longer optimizer.warmup or a smaller optimizer.clip may help",
                  metrics.step, found.what, where, unsaved));
}

void Rollback::save_before_the_first_step(const RunStops& stops) {
  if (run_.config.on_nonfinite != "rollback") return;
  bool is_lacking = false;
  together(*run_.group, [&] { is_lacking = run_.group->rank() == 0 && run_.saves->lacks(run_.first_step); });
  if (stops.agreed({.save = is_lacking}).save) run_.save(run_.first_step);
}

std::int64_t Rollback::go_back(StepLog& log) {
  const Divergence found = *log.diverged();
  log.finish();
  const StepClock::Scope part(step_clock(), StepPart::save);
  run_.saves->finish();
  auto reader = ckpt::open_newest_good(run_.config.save, *run_.group, ckpt::Verify::files, say_on_stderr);
  if (reader->manifest().step == last_ && times_in_a_row_ == kMostRollbacks) fail_diverged(run_, found);
  reader = ckpt::use_newest_good(
      run_.config.save, *run_.group,
      [this](const ckpt::CheckpointReader& save) { nn::load_checkpoint(save, run_.training_state()); }, say_on_stderr,
      std::move(reader));
  const std::int64_t step = reader->manifest().step;
  times_in_a_row_ = step == last_ ? times_in_a_row_ + 1 : 1;
  last_ = step;
  run_.state.skipped.skip_batch_of(found.metrics.step - 1);
  if (run_.group->rank() == 0)
    say_on_stderr(fmt::format("step {} has diverged: {}; back to step {}, and on without the batch of step {}",
                              found.metrics.step, found.what, step, found.metrics.step));
  log.roll_back();
  return step;
}

}  // namespace sherd::train
