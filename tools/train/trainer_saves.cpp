// A Trainer's saves: whose folder it is, what is saved and when, and going on from a save.
#include <algorithm>

#include "runtime/comm/group/agree.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/purpose.h"
#include "runtime/exec/running_op.h"
#include "tools/train/exit_status.h"
#include "tools/train/stop_signals.h"
#include "tools/train/trainer.h"

namespace sherd {

void Trainer::check_recipe_of(const ckpt::Manifest& save) {
  check_resumes(train_config_from_toml(save.config, config_.resume), config_);
}

// The state, the order of the data and the keys of dropout are those of the save on any number of ranks; sums are not.
void Trainer::say_what_changes(const TrainConfig& saved) {
  if (group_->rank() != 0) return;
  const ckpt::Manifest& save = resumed_->manifest();
  const auto say = [&](std::string_view what) {
    say_on_stderr(fmt::format("resume from {}: {}", config_.resume, what));
  };
  TrainConfig asked = config_;
  asked.plan.mesh = asked_mesh_;
  const std::string changes = rounding_differences(saved, asked);
  if (save.world_size != group_->size() || !changes.empty())
    say(fmt::format(
        "saved by {} rank{}, and gone on with by {}{}{}: the state is the same, later steps may differ by "
        "rounding",
        save.world_size, save.world_size == 1 ? "" : "s", group_->size(), changes.empty() ? "" : ", ", changes));
  const std::int64_t before = saved.optimizer.decay_steps, now = config_.optimizer.decay_steps;
  if (before == now || config_.optimizer.min_lr == config_.optimizer.lr) return;
  const std::int64_t end = std::min(config_.steps, std::max(before, now) + 1);  // both plans are over there
  std::int64_t step = save.step;
  const nn::CosineSchedule planned = schedule_of(saved), replanned = schedule_of(config_);
  while (step < end && planned.at(step) == replanned.at(step)) ++step;
  if (step < end)
    say(fmt::format("optimizer.decay_steps was {} and is {} now: learning rates differ from step {} on", before, now,
                    step + 1));
}

void Trainer::claim_save_folder() {
  look_together([&] {
    if (group_->rank() != 0) return;
    if (goes_on()) saves_->claim_after_another_rank();
    else saves_->claim(resumed_.get());
  });
}

// Damage shows where bytes are read: by then the run has been built for the save, and goes on with the one before it,
// if that is of the same run.
void Trainer::resume() {
  together(*group_, [&] { state(); });  // its memory is there before ranks exchange what they read
  resumed_ = ckpt::use_newest_good(
      config_.resume, *group_, [this](const ckpt::CheckpointReader& save) { load(save); }, say_on_stderr,
      std::move(resumed_));
  together(*group_, [&] { state_ = state_of(resumed_->manifest(), config_.resume); });
  check_usage(state_.updates <= config_.steps,
              "resume from {}: it has made {} steps, this run asks for {} in all; pass a larger --steps",
              config_.resume, state_.updates, config_.steps);
  resumed_.reset();
}

void Trainer::prepare_saves() {
  try {
    saves_->prepare(state());
  } catch (OutOfMemory& error) {
    explain(error);
    throw;
  }
}

void Trainer::load(const ckpt::CheckpointReader& save) {
  check_recipe_of(save.manifest());
  data_.check_is_of(save.manifest(), config_.data, config_.resume);
  check(save.manifest().vocabulary == data_->vocabulary().to_text(),
        "resume from {}: \"{}\" has another vocabulary than the later saves, which are damaged; name it by its folder",
        config_.resume, save.dir());
  const std::vector<nn::StateEntry> entries = state();
  nn::require_exactly(save, entries);
  nn::load_checkpoint(save, entries);
}

void Trainer::save(std::int64_t step) {
  const StageMark stage("a save");
  const PurposeScope purpose("Trainer::save");
  ckpt::Manifest manifest;
  note_state(manifest, state_, step_->scaler() == nullptr);
  manifest.step = step;
  TrainConfig asked = config_;
  asked.plan.mesh = asked_mesh_;
  manifest.config = to_toml(asked);
  data_.note(manifest);
  saves_->save(std::move(manifest), state());
}

// A run that may have to go back needs something to go back to.
void Trainer::save_before_the_first_step(const RunStops& stops) {
  if (config_.on_nonfinite != "rollback") return;
  bool is_lacking = false;
  together(*group_, [&] { is_lacking = group_->rank() == 0 && saves_->lacks(first_step_); });
  if (stops.agreed({.save = is_lacking}).save) save(first_step_);
}

// The state of the last good save, and the batches after it but the one that was too much. Returns its step.
std::int64_t Trainer::roll_back(StepLog& log) {
  const Divergence found = *log.diverged();
  log.finish();
  finish_save();
  auto reader = ckpt::open_newest_good(config_.save, *group_, ckpt::Verify::files, say_on_stderr);
  if (reader->manifest().step == rolled_back_to_ && rollbacks_in_a_row_ == kMostRollbacks) fail_diverged(found);
  reader = ckpt::use_newest_good(
      config_.save, *group_, [this](const ckpt::CheckpointReader& save) { nn::load_checkpoint(save, state()); },
      say_on_stderr, std::move(reader));
  const std::int64_t step = reader->manifest().step;
  rollbacks_in_a_row_ = step == rolled_back_to_ ? rollbacks_in_a_row_ + 1 : 1;
  rolled_back_to_ = step;
  state_.skipped.skip_batch_of(found.metrics.step - 1);
  if (group_->rank() == 0)
    say_on_stderr(fmt::format("step {} has diverged: {}; back to step {}, and on without the batch of step {}",
                              found.metrics.step, found.what, step, found.metrics.step));
  log.roll_back();
  return step;
}

void Trainer::save_and_stop(std::int64_t step, int signal) {
  try {
    save(step);
    finish_save();
  } catch (const CommError& error) {
    if (regroup_) throw;  // those that are left do it
    throw ExitError(kStoppedWithoutSave, fmt::format("stopped by {} after step {}, and could not save: {}",
                                                     signal_name(signal), step, error.what()));
  } catch (const Error& error) {
    throw ExitError(kStoppedWithoutSave, fmt::format("stopped by {} after step {}, and could not save: {}",
                                                     signal_name(signal), step, error.what()));
  }
}

}  // namespace sherd
