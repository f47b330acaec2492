// `sherd train CONFIG.toml [flags]`: ranks as processes of a launcher, or as threads of rank 0's process.
#include <chrono>
#include <cstdio>
#include <exception>
#include <utility>

#include <unistd.h>

#include "nn/parallel/shard/wrap/print_units.h"
#include "runtime/comm/board/shm_group.h"
#include "runtime/comm/job/group_choice.h"
#include "runtime/comm/job/rank.h"
#include "runtime/comm/job/world.h"
#include "runtime/cpu/parallel.h"
#include "tools/cli/command.h"
#include "tools/cli/cpu_share.h"
#include "tools/cli/dump_graph.h"
#include "tools/cli/progress.h"
#include "tools/cli/rank_threads.h"
#include "tools/train/exit_status.h"
#include "tools/train/explained_peak.h"
#include "tools/train/predicted_run.h"
#include "tools/train/restart.h"
#include "tools/train/run.h"
#include "tools/train/run_text.h"
#include "tools/train/sharding.h"
#include "tools/train/stop_signals.h"
#include "tools/train/survive.h"
#include "tools/train/train_report.h"

namespace sherd {

namespace {

void print(std::FILE* out, const std::string& text) {
  std::fputs(text.c_str(), out);
  std::fflush(out);
}

/// Signals are asked for where there is a folder to save to; without one they end the process as ever.
bool notes_signals(const TrainConfig& config) { return !config.save.empty() && config.save_on_signal; }

TrainSummary run(Trainer& trainer, const TrainConfig& config, const Trainer::StepObserver& observe) {
  if (!notes_signals(config)) return trainer.run(observe);
  return trainer.run(observe, StopSignals::noted, StopSignals::take_save);
}

/// The file goes on from what an earlier group of the run has written, whose last line may be missing or incomplete.
std::optional<MetricsFile> open_metrics(Trainer& trainer, const TrainConfig& config) {
  if (config.metrics.empty()) return std::nullopt;
  const std::int64_t complete =
      trainer.first_step() -
      (trainer.opened().state.last_line.empty() && trainer.opened().state.owed_line.empty() ? 0 : 1);
  const std::string header = header_line(trainer.config(), trainer.group().size());
  return when_free<FileIsTaken>(std::chrono::seconds(trainer.opened().regroup.goes_on() ? 10 : 0),
                                [&] { return MetricsFile(config.metrics, header, complete); });
}

void print_what_is_trained(Trainer& trainer) {
  const std::string ids = meaning_of_ids(trainer.config().model, trainer.data().vocabulary());
  const nn::TrainingPlan& plan = trainer.config().plan;
  const bool is_ordered = trainer.group().abilities().ordered_sum;
  const std::string mesh = plan.mesh.text(), sums = is_ordered ? sums_text(plan, trainer.group().size()) : "";
  const bool is_free = plan.numerics.layout_free();
  print(stderr,
        fmt::format("{} parameters, {} training and {} validation tokens, {} rank{}, {}{}{}{}{}{}{}{}\n{}",
                    trainer.model().num_parameters(), trainer.data().num_train(), trainer.data().num_validation(),
                    trainer.group().size(), trainer.group().size() == 1 ? "" : "s", trainer.opened().group_text,
                    sharding_text(plan, trainer.mesh().num_data_ranks(), trainer.opened().step->why_micro_batches()),
                    is_free || sums.empty() ? "" : ", sums ", is_free ? ", kernels " + kernels_text(plan) : sums,
                    mesh.empty() ? "" : ", mesh ", mesh, ids.empty() ? "" : "; ", ids,
                    trainer.opened().step->budget_text()));
}

/// A resume of a run that has made all of its steps.
bool has_nothing_to_do(const Trainer& trainer, const TrainConfig& config) {
  return !config.resume.empty() && trainer.first_step() >= config.steps;
}

TrainSummary train_as_rank_zero(Trainer& trainer, const TrainConfig& config) {
  std::optional<MetricsFile> file = open_metrics(trainer, config);
  const bool is_first_group = trainer.opened().state.last_line.empty();
  if (is_first_group) print_what_is_trained(trainer);
  if (config.memory_by_module && is_first_group)
    print(stdout,
          print_module_memory(
              explain_peak(trainer.config(), 0, trainer.group().size(), trainer.data().vocabulary().size()).modules));
  if (config.predict && is_first_group)
    if (const auto predicted = predict_run(trainer)) print(stdout, print_predicted(*predicted, trainer.config()));
  bool prints_units = config.print_units;  // after a step, which knows their order; or after a run without one
  const auto print_units_once = [&] {
    if (std::exchange(prints_units, false)) print(stdout, nn::print_units(trainer.model()));
  };
  TrainSummary summary;
  CaptureNotice notice;
  {
    Progress progress(stderr, ::isatty(STDERR_FILENO) != 0);
    const auto observe = [&](const StepMetrics& m) {
      if (!config.plan.memory_budget.is_set()) print_units_once();  // else updates do not show their order
      if (file) file->write(step_line(m));
      progress.show({m.step, config.steps, m.loss, m.tokens_per_second, m.memory_peak_bytes}, Progress::Clock::now());
      if (const std::string text = notice.of(m); !text.empty()) progress.message(text);
      if (m.val_loss) progress.message(fmt::format("step {}  validation loss {:.4f}", m.step, *m.val_loss));
    };
    const auto write = [&](const std::string& line) {
      if (file) file->write(line);
    };
    const auto write_owed = [&](const std::string& line, std::int64_t step, double val_loss) {
      write(line);
      progress.message(
          fmt::format("step {}  validation loss {:.4f}, owed by the run that was stopped", step, val_loss));
    };
    trainer.opened().late = {.write_last = write, .write_owed = write_owed};
    summary = run(trainer, config, observe);
  }
  print_units_once();
  if (trainer.opened().regroup.is_ended()) return summary;
  if (has_nothing_to_do(trainer, config)) {
    print(stderr, fmt::format("{} has made all of its {} steps; pass a larger --steps to go on\n", config.resume,
                              config.steps));
    return summary;
  }
  if (!trainer.opened().state.owed_line.empty() && !config.save.empty())
    print(stderr,
          fmt::format("the evaluation of step {} was left; --resume {} makes it first\n", summary.steps, config.save));
  print(stdout, train_report(trainer, config, summary));
  if (summary.stopped_by != 0)
    print(stderr, fmt::format("stopped by {} after step {} of {}; --resume {} goes on from there\n",
                              signal_name(summary.stopped_by), summary.steps, config.steps, config.save));
  return summary;
}

void take_share_of_cpus(ProcessGroup& group, const TrainConfig& config, bool tells) {
  const CpuShare cpus = share_cpus(group, config.threads);
  set_threads(cpus.threads);
  if (tells && group.rank() == 0) print(stderr, cpus.lines());
}

/// Returns the exit status.
int train_with(Trainer& trainer, const TrainConfig& config) {
  TrainSummary summary;
  if (!config.dump_graph.empty() && trainer.opened().state.last_line.empty()) dump_graph(trainer.opened());
  if (trainer.group().rank() == 0) {
    summary = train_as_rank_zero(trainer, config);
  } else {
    summary = run(trainer, config, [](const StepMetrics&) {});
    if (!trainer.opened().regroup.is_ended() && !has_nothing_to_do(trainer, config))
      train_report(trainer, config, summary);
  }
  return summary.stopped_by == 0 ? kDone : kStoppedAndSaved;
}

// A limit that leaves no room for the model leaves none at the next start.
void build(std::optional<Trainer>& trainer, const TrainConfig& config, const std::shared_ptr<ProcessGroup>& group) {
  try {
    trainer.emplace(config, group);
  } catch (const OutOfMemory& error) {
    if (config.memory_limit == 0) throw;
    throw ExitError(kUsage, error.what());
  }
}

/// Returns the exit status.
int train_rank(TrainConfig config, const std::shared_ptr<ProcessGroup>& group) {
  set_world_group(group);
  try {
    take_share_of_cpus(*group, config, true);
    std::optional<Trainer> trainer;
    build(trainer, config, group);
    std::optional<StopSignals> signals;
    if (notes_signals(config)) signals.emplace();
    return train_with(*trainer, config);
  } catch (const std::exception& error) {
    group->abort(error.what());  // peers stop waiting at once and quote the reason
    throw;
  }
}

int train_threads(const TrainConfig& config, int ranks) {
  int status = kDone;  // of rank 0; the others have the same
  run_rank_threads(ranks, [&config, &status](const std::shared_ptr<ProcessGroup>& group) {
    const int own = train_rank(config, group);
    if (group->rank() == 0) status = own;
  });
  return status;
}

std::chrono::nanoseconds to_time(double seconds) {
  return std::chrono::ceil<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

/// A rank of `sherd run --survive`.
int train_surviving(const TrainConfig& config, const RankInfo& rank, int ranks) {
  const WaitNotice notice{.say = say_on_stderr};
  const ShmGroupOptions waits{
      .rendezvous_deadline = std::chrono::ceil<std::chrono::milliseconds>(to_time(config.deadline)),
      .silence = to_time(config.frozen_after),
      .notice = notice};
  const std::unique_ptr<Store> store =
      connect_store(rank, std::chrono::ceil<std::chrono::milliseconds>(waits.silence), notice);
  const auto form = [&](const GroupOrder& order) -> std::shared_ptr<ProcessGroup> {
    const auto size = static_cast<int>(order.generation.ranks.size());
    if (size == 1) return make_single_group();
    ShmGroupOptions options = waits;
    options.name = fmt::format("world.{}", order.generation.number);
    options.gives_up = order.gives_up;
    return make_shm_group(*store, order.rank, size, options);
  };
  Survivor survivor({.config = config,
                     .rank = rank.rank,
                     .ranks = ranks,
                     .life = rank.life,
                     .last_generation = rank.generation,
                     .store = store.get(),
                     .notice = notice,
                     .form = form});
  std::optional<StopSignals> signals;
  bool is_first = rank.life == 1;
  return survivor.run(
      {.prepare = [&](ProcessGroup& group) { take_share_of_cpus(group, config, std::exchange(is_first, false)); },
       .train =
           [&](Trainer& trainer) {
             if (notes_signals(config) && !signals) signals.emplace();
             return train_with(trainer, config);
           }});
}

}  // namespace

int run_train(std::span<const std::string_view> args) {
  note_save_signals();  // whoever sends one does not know how far a rank has come
  std::optional<TrainConfig> config = load_train_config(args);
  if (!config) {
    print(stdout, train_help());
    return 0;
  }
  if (!notes_signals(*config)) forget_save_signals();
  const RankInfo rank = discover_rank();
  const RanksThatFit fit = ranks_that_fit(*config, rank);
  config->plan.mesh = fit.mesh;
  if (rank.rank == 0 && !fit.text.empty()) say_on_stderr(fit.text);
  if (rank.rank >= fit.ranks) return kDone;  // left out
  check_hosts(config->plan.device);
  if (rank.life > 0) return train_surviving(*config, rank, fit.ranks);
  if (config->group.kind() == GroupChoice::Kind::thread) {
    return rank.rank == 0 ? train_threads(*config, fit.ranks) : kDone;  // other processes have nothing to do
  }
  return train_rank(*config, world_group({.deadline = to_time(config->deadline),
                                          .silence = to_time(config->frozen_after),
                                          .ranks = fit.ranks}));
}

}  // namespace sherd
