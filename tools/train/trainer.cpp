// The loop of a run: steps, what follows each of them, and how it ends.
#include "tools/train/trainer.h"

#include <chrono>
#include <utility>

#include "nn/checkpoint/full/replicas.h"
#include "nn/checkpoint/full/state_hash.h"
#include "runtime/exec/context.h"
#include "runtime/exec/step_clock.h"
#include "tools/train/exit_status.h"
#include "tools/train/mfu.h"
#include "tools/train/rollback.h"
#include "tools/train/run.h"
#include "tools/train/step_log.h"
#include "tools/train/step_trace.h"
#include "tools/train/stop_signals.h"

namespace sherd::train {

namespace {

DivergenceRule divergence_rule(Run& run) {
  const nn::LossScaler* const scaler = run.step->scaler();
  return {.skips = run.config.on_nonfinite == "skip",
          .min_loss_scale = scaler ? scaler->options().min_scale : 0,
          .spike = run.config.spike};
}

/// Sequences of a step of all ranks: fewer than the batch where replicas are lost that nobody stands in for.
std::int64_t sequences_of_step(const Run& run) { return run.rows.count * run.mesh->num_data_ranks(); }

double seconds_at_peak(Run& run) {
  const double made = static_cast<double>(sequences_of_step(run)) / static_cast<double>(run.config.batch);
  const double flops = made * step_flops(run.config, run.step->model().num_parameters());
  const double peak = peak_flops(run.config, *run.group);
  return peak > 0 ? flops / peak : 0;
}

/// The steps of one call of Trainer::run().
class Steps {
 public:
  Steps(Run& run, const Trainer::StepObserver& observe, const RunStops& stops)
      : run_(run),
        stops_(stops),
        observe_([&run, &observe](const StepMetrics& metrics) {
          run.regroup.note_line(metrics, run.state);
          observe(metrics);
        }),
        trace_(config_.trace, config_.trace_steps, run.first_step, config_.steps, *run.group),
        log_(*run.group, RankContext::current().allocator(run.device).accounting(), run.first_step,
             divergence_rule(run), seconds_at_peak(run), observe_),
        rollback_(run) {}

  TrainSummary make_all();

 private:
  int make_each(std::int64_t& step);
  void make(std::int64_t step);
  void evaluate();
  int make_owed_evaluation();
  int end(std::int64_t step);
  int end_step_of_earlier_group();
  Wishes agreed_wishes();
  void save_and_stop(std::int64_t step, int signal);
  bool is_due(std::int64_t step, std::int64_t every) const {
    return step == config_.steps || (every > 0 && step % every == 0);
  }

  Run& run_;
  const TrainConfig& config_ = run_.config;
  RunState& state_ = run_.state;
  Regroup& regroup_ = run_.regroup;
  const RunStops& stops_;
  const Trainer::StepObserver observe_;
  StepTrace trace_;
  StepLog log_;
  Rollback rollback_;
};

Wishes Steps::agreed_wishes() {
  RunSaves& saves = *run_.saves;
  if (!stops_.has_polls() && !saves.are_due_by_time() && !regroup_.survives()) return {};
  Wishes own = stops_.own();
  regroup_.add_wish(own, state_, saves, *run_.group);
  if (saves.are_due_by_time() && run_.group->rank() == 0) own.save = own.save || saves.is_time();
  return stops_.agreed(own);
}

void Steps::make(std::int64_t step) {
  regroup_.begin_step();
  log_.begin();
  const std::optional<nn::AsyncSaver::Counts> before = run_.saves->counts();
  const StepTrace::Step traced(trace_, step + 1);
  const TrainStep::Result out = run_.update(step);
  state_.updates = step + 1;
  state_.is_step_open = true;
  StepMetrics known;
  known.step = step + 1;
  known.lr = run_.step->learning_rate(step);
  known.tokens = sequences_of_step(run_) * config_.model.sequence;
  if (run_.saves->is_in_flight()) {
    const nn::AsyncSaver::Counts now = *run_.saves->counts();
    known.save = {now.copied_bytes - before->copied_bytes, now.copy_seconds - before->copy_seconds};
  }
  regroup_.end_step(known);
  if (config_.plan.compiled) known.captured = {run_.step->is_captured(), run_.step->how()};
  if (step + 1 == config_.steps) known.predicted = run_.step->predicted();
  log_.end(known, out);
}

void Steps::evaluate() {
  StepMetrics metrics = log_.finish_but_last();
  std::optional<StepClock::Scope> part(std::in_place, step_clock(), StepPart::evaluation);
  try {
    if (!log_.diverged()) {
      const RunClock::Pause pause(log_.clock());
      metrics.val_loss = run_.evaluate(stops_);
    }
    metrics.times = log_.clock().times();
  } catch (...) {
    part.reset();
    log_.count_evaluation(metrics);
    log_.report(metrics);
    throw;
  }
  part.reset();
  log_.count_evaluation(metrics);
  // A save says so, and who resumes makes it first.
  state_.owed_line = metrics.val_loss || log_.diverged() ? "" : step_line(metrics);
  log_.report(metrics);
}

// Returns the signal to stop by, as do the next ones.
int Steps::make_owed_evaluation() {
  if (state_.owed_line.empty()) return 0;
  const std::optional<double> loss = run_.evaluate(stops_);
  if (!loss) {
    const int signal = stops_.stop();
    save_and_stop(run_.first_step, signal);
    return signal;
  }
  const std::string line = with_val_loss(std::exchange(state_.owed_line, {}), *loss);
  if (run_.late.write_owed && run_.group->rank() == 0) run_.late.write_owed(line, run_.first_step, *loss);
  return 0;
}

// What ranks are asked for after `step` updates, and the save of it.
int Steps::end(std::int64_t step) {
  // Before ranks talk, which may fail: a group that is formed then knows nothing of the verdict.
  if (regroup_.survives() && log_.diverged()) fail_diverged(run_, *log_.diverged());
  // There is nothing to stop after the last step, unless its evaluation has been left for a signal.
  const Wishes wishes = step != config_.steps      ? agreed_wishes()
                        : state_.owed_line.empty() ? Wishes()
                                                   : Wishes{.stop = stops_.stop()};
  const bool saves = !config_.save.empty() &&
                     (is_due(step, config_.save_every) || wishes.save || wishes.stop != 0 || state_.owes_save);
  state_.owes_save = state_.owes_save || wishes.save;
  if (saves) {
    log_.finish();
    state_.log = log_.history();
  }
  if (log_.diverged()) {
    if (config_.on_nonfinite == "rollback") return wishes.stop;  // make_each() goes back
    fail_diverged(run_, *log_.diverged());
  }
  // Before a save of the same step, which would keep what has changed by itself.
  if (config_.check_replicas > 0 && (saves || step % config_.check_replicas == 0))
    ckpt::check_replicas(run_.training_state(), fmt::format("step {}, without batches {}", step, state_.skipped.text()),
                         *run_.group);
  if (wishes.stop != 0 || saves) {
    const RunClock::Pause pause(log_.clock());  // copies what was counted
    if (wishes.stop != 0) save_and_stop(step, wishes.stop);
    else run_.save(step);
    state_.owes_save = false;
  }
  state_.is_step_open = false;
  regroup_.end_by(wishes);
  return wishes.stop;
}

// An evaluation and a save that the group before has left, perhaps when they were all but done.
int Steps::end_step_of_earlier_group() {
  int signal = 0;
  if (state_.is_step_open || state_.owes_save) {
    if (state_.is_step_open && is_due(run_.first_step, config_.eval_every))
      if (const std::optional<double> loss = run_.evaluate(stops_)) {
        log_.note_val_loss(*loss);
        if (!state_.last_line.empty()) state_.last_line = with_val_loss(state_.last_line, *loss);
      }
    signal = end(run_.first_step);
  }
  if (run_.late.write_last && run_.group->rank() == 0 && !state_.last_line.empty())
    run_.late.write_last(state_.last_line);
  return signal;
}

void Steps::save_and_stop(std::int64_t step, int signal) {
  const auto failure = [&](const Error& error) {
    return ExitError(kStoppedWithoutSave, fmt::format("stopped by {} after step {}, and could not save: {}",
                                                      signal_name(signal), step, error.what()));
  };
  try {
    run_.save(step);
    run_.saves->finish();
  } catch (const CommError& error) {
    if (regroup_.survives()) throw;  // those that are left do it
    throw failure(error);
  } catch (const Error& error) { throw failure(error); }
}

// `step`: updates made, before and after.
int Steps::make_each(std::int64_t& step) {
  rollback_.save_before_the_first_step(stops_);
  int signal = regroup_.goes_on() ? end_step_of_earlier_group() : make_owed_evaluation();
  while (step < config_.steps && signal == 0 && !regroup_.is_ended()) {
    make(step++);
    if (is_due(step, config_.eval_every)) evaluate();
    else log_.poll();
    trace_.after(step);
    run_.saves->poll();
    signal = end(step);
    if (log_.diverged()) step = rollback_.go_back(log_);
  }
  run_.saves->finish();
  return signal;
}

TrainSummary Steps::make_all() {
  const auto start = std::chrono::steady_clock::now();
  log_.go_on_from(state_.log);
  if (!regroup_.goes_on()) run_.saves->begin_clock();
  int signal = 0;
  std::int64_t step = run_.first_step;
  try {
    signal = make_each(step);
  } catch (OutOfMemory& error) {
    log_.finish_quietly();
    run_.explain(error);
    throw;
  } catch (...) {
    log_.finish_quietly();
    state_.log = log_.history();
    throw;
  }
  state_.log = log_.history();
  TrainSummary summary = log_.summary();
  summary.times = log_.clock().times();
  if (run_.memory_log) summary.peak = run_.memory_log->peak();
  summary.saves = run_.saves->counts();
  summary.survival = regroup_.counts();
  summary.stopped_by = signal;
  summary.steps = step;
  summary.predicted = run_.step->predicted();
  summary.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (run_.config.plan.numerics.layout_free())
    summary.state_hash = ckpt::hash_state(run_.training_state(), *run_.group);
  return summary;
}

}  // namespace

Trainer::Trainer(const TrainConfig& config, std::shared_ptr<ProcessGroup> group)
    : Trainer(open_run(config, std::move(group))) {}
Trainer::Trainer(std::unique_ptr<Run> run) : run_(std::move(run)) {}
Trainer::~Trainer() = default;

TrainSummary Trainer::run(const StepObserver& observe, const StopPoll& stop, const SavePoll& save) {
  const RunStops stops(*run_->group, stop, save);
  return Steps(*run_, observe, stops).make_all();
}

TrainStep::Result Trainer::train_step(std::int64_t step) { return run_->update(step); }
double Trainer::evaluate() { return *run_->evaluate(RunStops(*run_->group, {}, {})); }
void Trainer::save(std::int64_t step) { run_->save(step); }
void Trainer::finish_save() { run_->saves->finish(); }

nn::LanguageModel& Trainer::model() { return run_->step->model(); }
const TrainConfig& Trainer::config() const { return run_->config; }
const TokenData& Trainer::data() const { return *run_->data.tokens(); }
ProcessGroup& Trainer::group() { return *run_->group; }
const nn::JobMesh& Trainer::mesh() const { return *run_->mesh; }
std::int64_t Trainer::first_step() const { return run_->first_step; }
std::int64_t Trainer::updates() const { return run_->state.updates; }

}  // namespace sherd::train
