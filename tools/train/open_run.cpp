// Opens a run: what its ranks agree on, and what is there before its first step.
#include <algorithm>
#include <chrono>

#include "nn/memory_names.h"
#include "nn/random_rows.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/job/hosts.h"
#include "runtime/comm/job/world.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/exec/picks.h"
#include "runtime/exec/running_op.h"
#include "tools/train/exit_status.h"
#include "tools/train/flags.h"
#include "tools/train/model_factory.h"
#include "tools/train/run.h"
#include "tools/train/run_text.h"
#include "tools/train/saved_mesh.h"
#include "tools/train/sharding.h"
#include "tools/train/weights.h"

namespace sherd::train {

namespace {

/// together(), for what reads files: on every rank an Error, or an ExitError of kUsage if on one of them a value was
/// wrong. A file that cannot be read, or a save that is damaged, may be whole at the next start; a wrong value is not.
void look_together(ProcessGroup& group, const std::function<void()>& work) {
  bool is_wrong = false;
  try {
    together(group, [&] {
      try {
        work();
      } catch (const Error& error) {
        const auto* const exit = dynamic_cast<const ExitError*>(&error);
        is_wrong = exit != nullptr ? exit->status() == kUsage : dynamic_cast<const WrongText*>(&error) != nullptr;
        throw;
      }
    });
  } catch (const CommError&) { throw; } catch (const Error& error) {
    const std::vector<std::string> wrong = gather_text(group, is_wrong ? "wrong" : "");
    if (std::ranges::all_of(wrong, &std::string::empty)) throw;
    throw ExitError(kUsage, error.message());
  }
}

/// together(), where any Error is one of usage.
void check_together(ProcessGroup& group, const std::function<void()>& work) {
  as_usage([&] { together(group, work); });
}

// Whether two layouts of numerics that are free of the layout divide matrices, and with them their sums, alike.
bool divides_tensors_alike(const nn::TrainingPlan& a, int ranks_a, const nn::TrainingPlan& b, int ranks_b) {
  const int tp_a = nn::MeshAxes(a.mesh.of(ranks_a)).size("tp"), tp_b = nn::MeshAxes(b.mesh.of(ranks_b)).size("tp");
  const auto options = [](const nn::TensorParallelOptions& o) {
    return std::pair(o.sequence_parallel, o.loss_parallel);
  };
  return std::max(tp_a, 1) == std::max(tp_b, 1) &&
         (tp_a <= 1 || options(a.tensor_parallel) == options(b.tensor_parallel));
}

// The state, the order of the data and the keys of dropout are those of the save on any number of ranks; sums are not,
// unless they are free of the layout.
void say_what_changes(const Run& run, const ckpt::Manifest& save, const TrainConfig& saved) {
  if (run.group->rank() != 0) return;
  const TrainConfig& config = run.config;
  const auto say = [&](std::string_view what) {
    say_on_stderr(fmt::format("resume from {}: {}", config.resume, what));
  };
  TrainConfig asked = config;
  asked.plan.mesh = run.asked_mesh;
  const std::string changes = differences(save.plan.empty() ? saved.plan : nn::parse_plan(save.plan), asked.plan);
  const int ranks = run.group->size();
  const bool has_other_ranks = save.world_size != ranks;
  const std::string kernels = kernels_text(config.plan);
  const std::string kernels_before =
      save.state.contains(kKernelsOfSave) ? save.state_value<std::string>(kKernelsOfSave) : kernels;
  const bool has_other_kernels =
      kernels != kernels_before || (saved.plan.device == Device::cpu()) != (run.device == Device::cpu());
  const bool rounds = has_other_kernels || (asked.plan.numerics.layout_free()
                                                ? !divides_tensors_alike(saved.plan, save.world_size, asked.plan, ranks)
                                                : has_other_ranks || rounds_otherwise(saved, asked));
  if (has_other_ranks || !changes.empty() || has_other_kernels)
    say(fmt::format("saved by {} rank{}, resumes on {}{}{}: the state is the same{}{}", save.world_size,
                    save.world_size == 1 ? "" : "s", ranks, changes.empty() ? "" : " with ", changes,
                    rounds ? ", later steps may differ by rounding" : "",
                    kernels == kernels_before
                        ? ""
                        : fmt::format(": its kernels were \"{}\", these are \"{}\"", kernels_before, kernels)));
  if (!save.state.contains(kSumsOfSave) && ranks > 2)
    say(fmt::format(
        "it was trained when ranks were added one after the other; they are added as a tree now, so on {} ranks "
        "later steps differ by rounding from that program's",
        ranks));
  const std::string sums =
      save.state.contains(kSumsOfSave) ? save.state_value<std::string>(kSumsOfSave) : std::string();
  const bool was_fast = sums.starts_with(kFastSums);
  if (was_fast != !run.group->abilities().ordered_sum)
    say(fmt::format("it was trained with sums {}, and goes on with sums {}: later steps differ by rounding",
                    was_fast ? "in NCCL's order" : "as a tree", was_fast ? "as a tree" : "in NCCL's order"));
  const bool has_micro_batches = config.plan.micro_batches > 1 && !config.plan.accumulate_shards;
  if (has_micro_batches && sums.find(kSumsOfNeighbours) == sums.npos)
    say("its micro-batches were rows of all ranks together, which drew one after the other; a rank's are neighbouring "
        "rows now, which draw as one batch, so later steps differ from that program's by rounding and by dropout");
  const std::int64_t before = saved.optimizer.decay_steps, now = config.optimizer.decay_steps;
  if (before == now || config.optimizer.min_lr == config.optimizer.lr) return;
  const std::int64_t end = std::min(config.steps, std::max(before, now) + 1);  // both plans are over there
  std::int64_t step = save.step;
  const nn::CosineSchedule planned = schedule_of(saved), replanned = schedule_of(config);
  while (step < end && planned.at(step) == replanned.at(step)) ++step;
  if (step < end)
    say(fmt::format("optimizer.decay_steps was {} and is {} now: learning rates differ from step {} on", before, now,
                    step + 1));
}

/// Says of an error of `work` what would fit.
void explain_memory_of(Run& run, const std::function<void()>& work) {
  try {
    work();
  } catch (OutOfMemory& error) {
    run.explain(error);
    throw;
  }
}

/// A run, the save that it resumes and the weights that it begins on.
class RunStart {
 public:
  explicit RunStart(Run& run) : run_(run), config_(run.config), group_(*run.group) {}
  void open();

 private:
  void agree_on_config();
  void open_group();
  void open_data();
  void claim_save_folder();
  void build();
  void resume();
  void prepare_updates();
  void check_recipe_of(const ckpt::CheckpointReader& save) const {
    check_resumes(train_config_from_toml(save.manifest().config, config_.resume), config_);
  }

  Run& run_;
  TrainConfig& config_;
  ProcessGroup& group_;
  std::unique_ptr<ckpt::CheckpointReader> resumed_;
  std::unique_ptr<Weights> initial_;
};

void RunStart::open() {
  const StageMark stage("start-up");
  const auto begin = std::chrono::steady_clock::now();
  agree_on_config();
  open_group();
  run_.regroup.take_over(run_.state, *run_.saves, group_);
  if (!config_.resume.empty())
    resumed_ = ckpt::open_newest_good(config_.resume, group_, ckpt::Verify::files, say_on_stderr);
  if (resumed_ && run_.device != Device::cpu())
    if (const auto kept = resumed_->manifest().state.find(kPicksOfSave); kept != resumed_->manifest().state.end())
      picks_of_rank().load(std::get<std::string>(kept->second));
  open_data();
  config_.vocabulary = name(run_.data->vocabulary().kind());
  if (!config_.save.empty()) claim_save_folder();
  if (run_.regroup.survives() && !run_.regroup.goes_on()) run_.saves->share_names();
  explain_memory_of(run_, [&] { build(); });
  if (initial_) together(group_, [&] { initial_->load(run_.step->model()); });
  initial_.reset();
  if (resumed_) resume();
  if (run_.regroup.goes_on()) run_.regroup.give_state(run_.training_state(), run_.mesh->root(), group_);
  if (config_.save_async) explain_memory_of(run_, [&] { run_.saves->prepare(run_.training_state()); });
  explain_memory_of(run_, [&] { prepare_updates(); });
  run_.regroup.say(run_.state, group_, begin);
  run_.first_step = run_.state.updates;
}

void RunStart::agree_on_config() {
  run_.asked_mesh = config_.plan.mesh;
  check_together(group_, [&] { resolve(config_); });
  as_usage([&] {
    agree(group_, facts_of(config_), {"the ranks have different configs", "start all of them with the same"});
  });
  if (nn::lacks_replicas(config_.plan)) {  // an axis of replicas for a hybrid strategy whose mesh has none
    RankInfo own;
    together(group_, [&] { own = discover_rank(); });
    const int hosts = count_hosts(group_, own);
    config_.plan.mesh =
        as_usage([&] { return config_.plan.mesh.with_replicas(group_.size(), hosts, config_.plan.strategy.text()); });
  }
  check_together(group_, [&] {
    if (config_.plan.numerics.layout_free())  // before anything is divided by its leaves
      nn::check_plan(config_.plan, {.ranks = group_.size(), .batch = config_.batch});
    const std::optional<nn::BatchPart> part = run_.regroup.batch_part();
    run_.rows.ranks = part ? static_cast<int>(part->all) : nn::count_data_ranks(config_.plan.mesh.of(group_.size()));
    run_.rows.count = local_batch(config_, run_.rows.ranks);
    run_.rows.are_neighbours = !config_.plan.accumulate_shards;
    run_.rows.micro = run_.rows.count / nn::on_ranks(config_.plan, run_.rows.ranks).micro_batches;
  });
}

void RunStart::open_group() {
  if (config_.threads > 0) set_threads(static_cast<int>(config_.threads));
  const auto deadline =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(config_.deadline));
  group_.set_deadline(deadline);
  run_.saves.emplace(config_, group_);
  Picks& picks = picks_of_rank();
  // Picks by timing are of one job, and one hash is of several.
  const bool is_of_jobs = config_.plan.numerics.layout_free() && config_.plan.device.has_backend();
  picks.is_reproducible = picks.is_reproducible || config_.reproducible || is_of_jobs;
  if (picks.is_reproducible && config_.sums.text() == "auto") config_.sums = "ordered";
  check_together(group_, [&] {
    check(
        !picks.is_reproducible || config_.sums.text() != "fast",
        "sums = fast with SHERD_REPRODUCIBLE=1: NCCL's order differs between its versions and machines; take ordered");
  });
  check_together(group_, [&] { run_.device = open_device(config_.plan.device, group_, config_.memory_limit); });
  config_.plan.device = run_.device;
  as_usage([&] {
    auto [group, text] = chosen_group(run_.group, run_.device, config_.group, config_.sums);
    run_.group = std::move(group);
    run_.group->set_deadline(deadline);
    run_.group_text = text.empty() ? "" : text + ", ";
    run_.mesh.emplace(config_.plan.mesh, run_.group);  // its groups have the deadline of this one
    config_.link.shape(*run_.mesh);
  });
  if (group_.size() > 1) RankContext::current().rank_text = run_.mesh->rank_text();
}

void RunStart::open_data() {
  if (run_.regroup.data().tokens()) {
    run_.data = run_.regroup.data();
    return run_.data.compare(group_, config_.data);
  }
  if (!resumed_ && !config_.init_from.empty()) {
    initial_ = std::make_unique<Weights>(config_.init_from, group_);
    as_usage([&] { initial_->check_fits(config_.model); });
  }
  std::optional<TrainConfig> saved;
  look_together(group_, [&] {
    if (!resumed_) return;
    saved = train_config_from_toml(resumed_->manifest().config, config_.resume);
    check_usage(!resumed_->manifest().vocabulary.empty(),
                "resume from {}: it holds weights that were converted, and no run; begin one on them by --init-from {}",
                config_.resume, config_.resume);
    if (config_.vocabulary == "auto") config_.vocabulary = saved->vocabulary;
  });
  check_together(group_, [&] {
    check(!config_.data.empty(), "there is no text to train on: set `data` in the config or pass --data PATH");
    if (resumed_) check_recipe_of(*resumed_);
  });
  look_together(group_, [&] {
    if (resumed_) {
      say_what_changes(run_, resumed_->manifest(), *saved);
      run_.data = RunData(TokenData::open(config_.data, Vocabulary::from_text(resumed_->manifest().vocabulary)));
    } else {
      run_.data = RunData(open_run_text(config_, initial_.get()));
    }
    run_.data->check_sequence(config_.model.sequence);
  });
  run_.data.agree(group_, config_.data);
  if (resumed_) as_usage([&] { run_.data.check_is_of(resumed_->manifest(), config_.data, config_.resume); });
}

void RunStart::claim_save_folder() {
  look_together(group_, [&] {
    if (group_.rank() != 0) return;
    if (run_.regroup.goes_on()) run_.saves->claim_after_another_rank();
    else run_.saves->claim(resumed_.get());
  });
  run_.saves->check_all_see_it();
}

void RunStart::build() {
  const std::int64_t vocabulary = run_.data->vocabulary().size();
  if (resumed_) together(group_, [&] { check_parameters(*resumed_, model_config(config_.model, vocabulary)); });
  if (config_.explain_peak && group_.rank() == 0)
    run_.memory_log.emplace(RankContext::current().allocator(run_.device),
                            nn::names_by_slots([&run = run_] { return run.step ? &run.step->model() : nullptr; }));
  const std::optional<nn::BatchPart> part = run_.regroup.batch_part();
  run_.rows.rank = part ? static_cast<int>(part->first) : run_.mesh->data_rank();
  nn::set_batch_part(part);
  const bool is_loaded = initial_ || resumed_ || run_.regroup.goes_on();
  run_.step.emplace(config_, *run_.mesh, vocabulary,
                    TrainStep::Options{.agrees = run_.regroup.survives(), .draws = !is_loaded});
}

// As as_usage(), with all that the error says: what holds the least of a budget, and where.
void RunStart::prepare_updates() {
  try {
    run_.step->prepare();
  } catch (const CommError&) { throw; } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& error) { throw ExitError(kUsage, error.what()); }
}

// Damage shows where bytes are read: by then the run has been built for the save, and goes on with the one before it,
// if that is of the same run.
void RunStart::resume() {
  together(group_, [&] { run_.training_state(); });  // its memory is there before ranks exchange what they read
  const auto load = [&](const ckpt::CheckpointReader& save) {
    check_recipe_of(save);
    run_.data.check_is_of(save.manifest(), config_.data, config_.resume);
    check(
        save.manifest().vocabulary == run_.data->vocabulary().to_text(),
        "resume from {}: \"{}\" has another vocabulary than the later saves, which are damaged; name it by its folder",
        config_.resume, save.dir());
    const std::vector<nn::StateEntry> entries = run_.training_state();
    nn::require_exactly(save, entries);
    nn::load_checkpoint(save, entries);
  };
  resumed_ = ckpt::use_newest_good(config_.resume, group_, load, say_on_stderr, std::move(resumed_));
  together(group_, [&] { run_.state = state_of(resumed_->manifest(), config_.resume); });
  check_usage(run_.state.updates <= config_.steps,
              "resume from {}: it has made {} steps, this run asks for {} in all; pass a larger --steps",
              config_.resume, run_.state.updates, config_.steps);
}

}  // namespace

std::unique_ptr<Run> open_run(const TrainConfig& config, std::shared_ptr<ProcessGroup> group, Regroup regroup) {
  auto run = std::make_unique<Run>();
  run->config = config;
  run->group = std::move(group);
  run->regroup = std::move(regroup);
  RunStart(*run).open();
  return run;
}

}  // namespace sherd::train
