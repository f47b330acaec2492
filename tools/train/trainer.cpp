// Numbers that must not depend on the number of ranks: the global batch (drawn by sample index), the initial bits
// (drawn by parameter name and element), the loss (every rank's mean over equally many tokens, averaged over ranks).
#include "tools/train/trainer.h"

#include <algorithm>
#include <chrono>

#include "nn/checkpoint/full/replicas.h"
#include "nn/memory_names.h"
#include "nn/non_finite.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/hosts.h"
#include "runtime/comm/job/world.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"
#include "runtime/exec/running_op.h"
#include "runtime/op/core/host_reads.h"
#include "runtime/op/rows/ops.h"
#include "tools/train/device_flag.h"
#include "tools/train/exit_status.h"
#include "tools/train/memory_advice.h"
#include "tools/train/model_factory.h"
#include "tools/train/run_text.h"
#include "tools/train/saved_mesh.h"
#include "tools/train/stop_signals.h"

namespace sherd {

Trainer::Trainer(const TrainConfig& config, std::shared_ptr<ProcessGroup> group)
    : config_(config), group_(std::move(group)) {
  start();
}

Trainer::Trainer(const TrainConfig& config, std::shared_ptr<ProcessGroup> group, TrainGroup place)
    : config_(config), group_(std::move(group)), regroup_(std::in_place, std::move(place)) {
  start();
}

void Trainer::start() {
  const StageMark stage("start-up");
  const auto begin = std::chrono::steady_clock::now();
  open_group();
  if (goes_on()) state_ = regroup_->take_over(*saves_, *group_);
  if (!config_.resume.empty())
    resumed_ = ckpt::open_newest_good(config_.resume, *group_, ckpt::Verify::files, say_on_stderr);
  open_data();
  config_.vocabulary = name(data_->vocabulary().kind());
  if (!config_.save.empty()) claim_save_folder();
  if (regroup_ && !goes_on()) saves_->share_names();
  build();
  if (resumed_) resume();
  if (goes_on()) regroup_->give_state(state(), mesh_->root(), *group_);
  if (config_.save_async) prepare_saves();
  if (goes_on()) regroup_->say(state_, *group_, begin);
  first_step_ = state_.updates;
}

void Trainer::open_group() {
  agree_on_config();
  if (config_.threads > 0) set_threads(static_cast<int>(config_.threads));
  group_->set_deadline(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(config_.deadline)));
  saves_.emplace(config_, *group_);
  as_usage([&] {
    together(*group_, [&] { device_ = open_device(config_.plan.device, group_->size(), config_.memory_limit); });
  });
  as_usage([&] {
    mesh_.emplace(config_.plan.mesh, group_);  // its groups have the deadline of this one
    config_.link.shape(*mesh_);
  });
  if (group_->size() > 1) RankContext::current().rank_text = mesh_->rank_text();
}

// A file that cannot be read, or a save that is damaged, may be whole at the next start; a wrong value is not.
void Trainer::look_together(const std::function<void()>& work) {
  bool is_wrong = false;
  try {
    together(*group_, [&] {
      try {
        work();
      } catch (const ExitError& error) {
        is_wrong = error.status() == kUsage;
        throw;
      } catch (const WrongText&) {
        is_wrong = true;
        throw;
      }
    });
  } catch (const CommError&) { throw; } catch (const Error& error) {
    const std::vector<std::string> wrong = gather_text(*group_, is_wrong ? "wrong" : "");
    if (std::ranges::all_of(wrong, &std::string::empty)) throw;
    throw ExitError(kUsage, error.message());
  }
}

void Trainer::agree_on_config() {
  asked_mesh_ = config_.plan.mesh;
  as_usage([&] {
    together(*group_, [&] { resolve(config_); });
    agree(*group_, facts_of(config_), {"the ranks have different configs", "start all of them with the same"});
  });
  place_replicas();
  as_usage([&] {
    together(*group_, [&] {
      local_batch_ = local_batch(config_, regroup_ ? regroup_->place().data_ranks
                                                   : nn::count_data_ranks(config_.plan.mesh.of(group_->size())));
    });
  });
}

// Names an axis of replicas for a hybrid strategy whose mesh has none.
void Trainer::place_replicas() {
  if (!nn::lacks_replicas(config_.plan)) return;
  RankInfo own;
  together(*group_, [&] { own = discover_rank(); });
  const int hosts = count_hosts(*group_, own);
  config_.plan.mesh =
      as_usage([&] { return config_.plan.mesh.with_replicas(group_->size(), hosts, config_.plan.strategy.text()); });
}

void Trainer::open_data() {
  if (regroup_ && regroup_->place().data.tokens()) {
    data_ = regroup_->place().data;
    return data_.compare(*group_, config_.data);
  }
  if (!resumed_ && !config_.init_from.empty()) open_initial();
  std::optional<TrainConfig> saved;
  look_together([&] {
    if (!resumed_) return;
    saved = train_config_from_toml(resumed_->manifest().config, config_.resume);
    check_usage(!resumed_->manifest().vocabulary.empty(),
                "resume from {}: it holds weights that were converted, and no run; begin one on them by --init-from {}",
                config_.resume, config_.resume);
    if (config_.vocabulary == "auto") config_.vocabulary = saved->vocabulary;
  });
  as_usage([&] {
    together(*group_, [&] {
      check(!config_.data.empty(), "there is no text to train on: set `data` in the config or pass --data PATH");
      if (resumed_) check_recipe_of(resumed_->manifest());
    });
  });
  look_together([&] {
    if (resumed_) {
      say_what_changes(*saved);
      data_ = RunData(TokenData::open(config_.data, Vocabulary::from_text(resumed_->manifest().vocabulary)));
    } else {
      data_ = RunData(open_run_text(config_, initial_.get()));
    }
    data_->check_sequence(config_.model.sequence);
  });
  data_.agree(*group_, config_.data);
  if (resumed_) as_usage([&] { data_.check_is_of(resumed_->manifest(), config_.data, config_.resume); });
}

void Trainer::open_initial() {
  initial_ = std::make_unique<Weights>(config_.init_from, *group_);
  as_usage([&] { initial_->check_fits(config_.model); });
}

void Trainer::build() {
  if (resumed_)
    together(*group_, [&] { check_parameters(*resumed_, model_config(config_.model, data_->vocabulary().size())); });
  Allocator& memory = RankContext::current().allocator(device_);
  if (config_.explain_peak && group_->rank() == 0)
    memory_log_.emplace(
        memory, [this](MemoryPicture& picture) { nn::name_by_slots(picture, step_ ? &step_->model() : nullptr); });
  try {
    const bool is_loaded = initial_ || resumed_ || goes_on();
    TrainStepOptions options{.agrees = regroup_.has_value(), .draws = !is_loaded};
    rows_ = {.count = local_batch_,
             .micro = local_batch_ / config_.plan.micro_batches,
             .rank = regroup_ ? regroup_->place().data_rank : mesh_->data_rank(),
             .ranks = regroup_ ? regroup_->place().data_ranks : mesh_->num_data_ranks()};
    if (regroup_) options.batch_part = nn::BatchPart{rows_.rank, 1, rows_.ranks};
    step_.emplace(config_, *mesh_, data_->vocabulary().size(), options);
  } catch (OutOfMemory& error) {
    explain(error);
    throw;
  }
  if (initial_) together(*group_, [&] { initial_->load(step_->model()); });
  initial_.reset();
}

void Trainer::explain(OutOfMemory& error) noexcept {
  const Accounting& account = RankContext::current().allocator(device_).accounting();
  const bool has_libraries = device_ != Device::cpu();
  explain_out_of_memory(
      error, config_, *group_, data_->vocabulary().size(),
      {.most = account.total_peak(), .of_libraries = has_libraries ? account.current(MemoryCategory::workspace) : 0});
}

std::vector<nn::StateEntry> Trainer::state() {
  return nn::training_state(step_->model(), &step_->optimizer(), step_->scaler());
}

std::pair<Tensor, Tensor> Trainer::training_batch(std::int64_t step) {
  auto [tokens, targets] = data_.training_batch(static_cast<std::uint64_t>(config_.seed), state_.skipped.batch_of(step),
                                                rows_, config_.model.sequence);
  return {to(std::move(tokens), device_), to(std::move(targets), device_)};
}

TrainStep::Result Trainer::train_step(std::int64_t step) {
  step_->set_step(step);
  const auto [tokens, targets] = [&] {
    const TraceSpan span("batch");
    return training_batch(step);
  }();
  return step_->update(tokens, targets);
}

double Trainer::evaluate() { return *evaluate_unless_stopped(RunStops(*group_, {}, {})); }

std::optional<double> Trainer::evaluate_unless_stopped(const RunStops& stops) {
  const StageMark stage("an evaluation");
  const PurposeScope purpose("Trainer::evaluate");
  const std::int64_t sequence = config_.model.sequence;
  std::int64_t windows = data_->num_validation_windows(sequence);
  if (config_.eval_batches > 0) windows = std::min(windows, config_.eval_batches * config_.batch);
  double loss_sum = 0, count = 0;
  HostReads reads;
  const std::int64_t micro = rows_.micro;  // no more at once than in a step
  // Every rank runs equally many forwards; windows past the end are padding that no target counts.
  bool stopped = false;
  for (std::int64_t start = 0; start < windows && !stopped; start += micro * mesh_->num_data_ranks()) {
    std::vector<std::int32_t> batch(static_cast<std::size_t>(micro * (sequence + 1)), 0);
    std::int64_t real = 0;
    for (std::int64_t i = 0; i < micro; ++i) {
      const std::int64_t index = start + mesh_->data_rank() * micro + i;
      if (index >= windows) break;
      data_->validation_window(index, std::span(batch).subspan(static_cast<std::size_t>(i * (sequence + 1)),
                                                               static_cast<std::size_t>(sequence + 1)));
      ++real;
    }
    auto [tokens, targets] = inputs_and_targets(batch, micro, sequence);
    std::fill_n(targets.mutable_data<std::int32_t>() + real * sequence, (micro - real) * sequence, -100);
    const auto tokens_here = static_cast<double>(real * sequence);
    const Tensor loss = step_->evaluate(to(std::move(tokens), device_), to(std::move(targets), device_));
    if (real > 0)
      reads.push({loss}, [&loss_sum, tokens_here](std::span<const double> v) { loss_sum += v[0] * tokens_here; });
    count += tokens_here;
    stopped = stops.stop() != 0;
  }
  reads.finish();
  model().train(true);
  if (stopped) return std::nullopt;
  double totals[] = {loss_sum, count};
  mesh_->data_group().host().all_reduce({in_place(totals, DType::f64, 2)}, {});
  return totals[0] / totals[1];
}

Wishes Trainer::agreed_wishes(const RunStops& stops) {
  if (!stops.has_polls() && !saves_->are_due_by_time() && !regroup_) return {};
  Wishes own = stops.own();
  state_.owes_save = state_.owes_save || (regroup_ && own.save);  // who asked may be told of a lost rank, not of a save
  if (saves_->are_due_by_time() && group_->rank() == 0) own.save = own.save || saves_->is_time();
  // Not beside a save that is being written: it would be waited for.
  if (regroup_ && group_->rank() == 0 && !saves_->is_in_flight()) own.regroup = regroup_->has_next();
  return stops.agreed(own);
}

DivergenceRule Trainer::divergence_rule() {
  const nn::LossScaler* const scaler = step_->scaler();
  return {.skips = config_.on_nonfinite == "skip",
          .min_loss_scale = scaler ? scaler->options().min_scale : 0,
          .spike = config_.spike};
}

void Trainer::fail_diverged(const Divergence& found) {
  std::string unsaved;
  try {
    finish_save();  // of a step before
  } catch (const CommError&) { throw; } catch (const Error& error) {
    unsaved = fmt::format(", and the save before it has failed: {}", error.message());
  }
  const StepMetrics& metrics = found.metrics;
  if (found.is_spike)
    throw ExitError(kDiverged, fmt::format("the run has diverged in step {}: {}. Nothing was saved since{}",
                                           metrics.step, found.what, unsaved));
  std::string where;
  try {
    step_->set_step(metrics.step - 1);
    where = nn::first_non_finite(model(), *group_, [&] {
      const auto [tokens, targets] = training_batch(metrics.step - 1);
      step_->forward_backward(tokens, targets);
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

// Before a save of the same step, which would keep what has changed by itself.
void Trainer::compare_replicas(std::int64_t step) {
  ckpt::check_replicas(state(), fmt::format("step {}, without batches {}", step, state_.skipped.text()), *group_);
}

void Trainer::make_step(std::int64_t step, StepTrace& trace, StepLog& log) {
  if (regroup_) regroup_->step_begin = std::chrono::steady_clock::now();
  log.begin();
  const ckpt::SnapshotCost cost_before = saves_->cost();
  const StepTrace::Step traced(trace, step + 1);
  const TrainStep::Result out = train_step(step);
  state_.updates = step + 1;
  state_.is_step_open = true;
  StepMetrics known;
  known.step = step + 1;
  known.lr = step_->learning_rate(step);
  known.tokens = local_batch_ * mesh_->num_data_ranks() * config_.model.sequence;
  if (saves_->is_in_flight()) {
    const ckpt::SnapshotCost cost = saves_->cost();
    known.save = {cost.copied_bytes - cost_before.copied_bytes, cost.seconds - cost_before.seconds};
  }
  if (regroup_) {
    regroup_->step_begin.reset();
    regroup_->note(known);
  }
  if (config_.plan.compiled) known.captured = {step_->is_captured(), step_->how()};
  log.end(known, out);
}

bool Trainer::is_due(std::int64_t step, std::int64_t every) const {
  return step == config_.steps || (every > 0 && step % every == 0);
}

void Trainer::evaluate_step(StepLog& log, const RunStops& stops) {
  StepMetrics metrics = log.finish_but_last();
  try {
    if (!log.diverged()) {
      const RunClock::Pause pause(log.clock());
      metrics.val_loss = evaluate_unless_stopped(stops);
    }
    metrics.times = log.clock().times();
  } catch (...) {
    log.count_peak(metrics);
    log.report(metrics);
    throw;
  }
  log.count_peak(metrics);
  // A save says so, and who resumes makes it first.
  state_.owed_line = metrics.val_loss || log.diverged() ? "" : step_line(metrics);
  log.report(metrics);
}

int Trainer::make_owed_evaluation(const RunStops& stops) {
  if (state_.owed_line.empty() || goes_on()) return 0;
  const std::optional<double> loss = evaluate_unless_stopped(stops);
  if (!loss) {
    const int signal = stops.stop();
    save_and_stop(first_step_, signal);
    return signal;
  }
  const std::string line = with_val_loss(std::exchange(state_.owed_line, {}), *loss);
  if (late_.write_owed && group_->rank() == 0) late_.write_owed(line, first_step_, *loss);
  return 0;
}

int Trainer::run_step(std::int64_t step, StepTrace& trace, StepLog& log, const RunStops& stops) {
  make_step(step, trace, log);
  if (is_due(step + 1, config_.eval_every)) evaluate_step(log, stops);
  else log.poll();
  trace.after(step + 1);
  saves_->poll();
  return end_step(step + 1, log, stops);
}

// What ranks are asked for after `step` updates, and the save of it. Returns the signal to stop by.
int Trainer::end_step(std::int64_t step, StepLog& log, const RunStops& stops) {
  // Before ranks talk, which may fail: a group that is formed then knows nothing of the verdict.
  if (regroup_ && log.diverged()) fail_diverged(*log.diverged());
  // There is nothing to stop after the last step, unless its evaluation has been left for a signal.
  const Wishes wishes = step != config_.steps      ? agreed_wishes(stops)
                        : state_.owed_line.empty() ? Wishes()
                                                   : Wishes{.stop = stops.stop()};
  const bool saves = !config_.save.empty() &&
                     (is_due(step, config_.save_every) || wishes.save || wishes.stop != 0 || state_.owes_save);
  state_.owes_save = state_.owes_save || wishes.save;
  if (saves) {
    log.finish();
    state_.log = log.history();
  }
  if (log.diverged()) {
    if (config_.on_nonfinite == "rollback") return wishes.stop;  // run() goes back
    fail_diverged(*log.diverged());
  }
  if (config_.check_replicas > 0 && (saves || step % config_.check_replicas == 0)) compare_replicas(step);
  if (wishes.stop != 0 || saves) {
    const RunClock::Pause pause(log.clock());  // copies what was counted
    if (wishes.stop != 0) save_and_stop(step, wishes.stop);
    else save(step);
    state_.owes_save = false;
  }
  state_.is_step_open = false;
  if (regroup_) regroup_->is_ended = wishes.regroup && wishes.stop == 0;
  return wishes.stop;
}

// An evaluation and a save that the group before has left, perhaps when they were all but done.
int Trainer::end_step_of_earlier_group(StepLog& log, const RunStops& stops) {
  int signal = 0;
  if (state_.is_step_open || state_.owes_save) {
    if (state_.is_step_open && is_due(first_step_, config_.eval_every))
      if (const std::optional<double> loss = evaluate_unless_stopped(stops)) {
        log.note_val_loss(*loss);
        if (!state_.last_line.empty()) state_.last_line = with_val_loss(state_.last_line, *loss);
      }
    signal = end_step(first_step_, log, stops);
  }
  if (late_.write_last && group_->rank() == 0 && !state_.last_line.empty()) late_.write_last(state_.last_line);
  return signal;
}

// What a step has left in queues, of units that are being gathered too, comes to its end first.
ckpt::CarriedState Trainer::carry() {
  RankContext::current().drain_queues();
  return ckpt::CarriedState::take(state());
}

TrainSummary Trainer::run(const StepObserver& observe, const StopPoll& stop, const SavePoll& save) {
  const RunStops stops(*group_, stop, save);
  StepTrace trace(config_.trace, config_.trace_steps, first_step_, config_.steps, *group_);
  const StepObserver noting = [&](const StepMetrics& metrics) {
    if (regroup_) state_.last_line = step_line(metrics);
    observe(metrics);
  };
  StepLog log(*group_, RankContext::current().allocator(device_).accounting(), first_step_, divergence_rule(), noting);
  const auto start = std::chrono::steady_clock::now();
  log.go_on_from(state_.log);
  if (!goes_on()) saves_->begin_clock();
  int signal = 0;
  std::int64_t step = first_step_;
  try {
    save_before_the_first_step(stops);
    signal = make_owed_evaluation(stops);
    if (goes_on()) signal = end_step_of_earlier_group(log, stops);
    while (step < config_.steps && signal == 0 && !is_regrouped()) {
      signal = run_step(step++, trace, log, stops);
      if (log.diverged()) step = roll_back(log);
    }
    finish_save();
  } catch (OutOfMemory& error) {
    log.finish_quietly();
    explain(error);
    throw;
  } catch (...) {
    log.finish_quietly();
    state_.log = log.history();
    throw;
  }
  state_.log = log.history();
  TrainSummary summary = log.summary();
  summary.times = log.clock().times();
  if (memory_log_) summary.peak = memory_log_->peak();
  summary.saves = saves_->counts();
  if (regroup_) summary.survival = regroup_->place().record.counts;
  summary.stopped_by = signal;
  summary.steps = step;
  summary.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return summary;
}

}  // namespace sherd
