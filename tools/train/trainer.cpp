// Numbers that must not depend on the number of ranks: the global batch (drawn by sample index), the initial bits
// (drawn by parameter name and element), the loss (every rank's mean over equally many tokens, averaged over ranks).
#include "tools/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <ratio>

#include <unistd.h>

#include "nn/checkpoint/replicas.h"
#include "nn/memory_names.h"
#include "nn/non_finite.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/hosts.h"
#include "runtime/comm/job/world.h"
#include "runtime/comm/store/hmac.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/exec/running_op.h"
#include "runtime/op/host_reads.h"
#include "runtime/op/ops.h"
#include "tools/train/device_flag.h"
#include "tools/train/exit_status.h"
#include "tools/train/memory_advice.h"
#include "tools/train/model_factory.h"
#include "tools/train/restart.h"
#include "tools/train/sharding.h"
#include "tools/train/stop_signals.h"

namespace sherd {

namespace {

// windows: [count][sequence + 1] -> inputs and targets, i32 [count, sequence]
std::pair<Tensor, Tensor> to_tensors(std::span<const std::int32_t> windows, std::int64_t count, std::int64_t sequence) {
  Tensor inputs = Tensor::empty({count, sequence}, DType::i32), targets = Tensor::empty({count, sequence}, DType::i32);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t* window = windows.data() + i * (sequence + 1);
    std::copy_n(window, sequence, inputs.mutable_data<std::int32_t>() + i * sequence);
    std::copy_n(window + 1, sequence, targets.mutable_data<std::int32_t>() + i * sequence);
  }
  return {std::move(inputs), std::move(targets)};
}

/// What no two hosts have in common; a random one where the system does not tell.
std::string host_identity() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id.empty() ? random_hex(16) : id;
}

}  // namespace

Trainer::Trainer(const TrainConfig& config, std::shared_ptr<ProcessGroup> group)
    : config_(config), group_(std::move(group)) {
  const StageMark stage("start-up");
  agree_on_config();
  if (config_.threads > 0) set_threads(static_cast<int>(config_.threads));
  group_->set_deadline(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(config_.deadline)));
  retention_.keep = static_cast<int>(config_.keep);
  retention_.keep_every = config_.keep_every;
  together(*group_, [&] { device_ = open_device(config_.device, group_->size(), config_.memory_limit); });
  mesh_.emplace(config_.mesh, group_, config_.link);  // its groups have the deadline of this one
  if (group_->size() > 1) RankContext::current().rank_text = mesh_->rank_text();
  if (!config_.resume.empty())
    resumed_ = nn::open_newest_good(config_.resume, *group_, nn::Verify::files, say_on_stderr);
  open_data();
  if (!config_.save.empty()) claim_save_folder();
  build();
  if (resumed_) resume();
  if (config_.save_async) prepare_saves();
}

void Trainer::agree_on_config() {
  asked_mesh_ = config_.mesh;
  const std::vector<std::string> texts = gather_text(*group_, to_toml(config_));
  together(*group_, [&] {
    resolve(config_);
    for (std::size_t r = 1; r < texts.size(); ++r) {
      const std::string difference =
          config_difference(train_config_from_toml(texts[0], "rank 0"), "rank 0",
                            train_config_from_toml(texts[r], "another rank"), fmt::format("rank {}", r));
      check(difference.empty(), "the ranks have different configs: {}", difference);
    }
  });
  place_replicas();
  together(*group_,
           [&] { local_batch_ = local_batch(config_, count_data_ranks(mesh_of(config_.mesh, group_->size()))); });
}

// Of a hybrid strategy whose mesh names no axis for them.
void Trainer::place_replicas() {
  if (!lacks_replicas(config_)) return;
  RankInfo own;
  together(*group_, [&] { own = discover_rank(); });
  const int hosts = count_hosts(*group_, own);
  config_.mesh = mesh_with_replicas(config_.mesh, group_->size(), hosts, config_.strategy);
}

void Trainer::open_data() {
  if (!resumed_ && !config_.init_from.empty()) open_initial();
  together(*group_, [&] {
    check(!config_.data.empty(), "there is no text to train on: set `data` in the config or pass --data PATH");
    if (resumed_) {
      check_recipe_of(resumed_->manifest());
      say_what_changes(train_config_from_toml(resumed_->manifest().config, config_.resume));
      data_.emplace(TokenData::open(config_.data, Vocabulary::from_text(resumed_->manifest().vocabulary)));
    } else {
      const bool has_vocabulary = initial_ && initial_->vocabulary();
      data_.emplace(has_vocabulary ? TokenData::open(config_.data, *initial_->vocabulary())
                                   : TokenData::open(config_.data, vocabulary_kind_from_name(config_.vocabulary)));
    }
    data_->check_sequence(config_.model.sequence);
  });
  agree_on_data();
  if (resumed_) check_data_of(resumed_->manifest());
}

void Trainer::check_recipe_of(const Manifest& save) {
  const TrainConfig saved = train_config_from_toml(save.config, config_.resume);
  const std::string difference = recipe_difference(saved, "the checkpoint", config_, "this run");
  check(difference.empty(), "resume from {}: {}", config_.resume, difference);
}

// Of ranks that see the same files of one host the first reads them for all.
void Trainer::agree_on_data() {
  const TextFiles& files = data_->files();
  std::string seen;
  together(*group_, [&] { seen = fmt::format("{} {}", host_identity(), files.identity()); });
  const std::vector<std::string> all_seen = gather_text(*group_, seen);
  const auto first = static_cast<int>(std::find(all_seen.begin(), all_seen.end(), seen) - all_seen.begin());
  ContentHash hash;
  together(*group_, [&] {
    if (first == group_->rank()) hash = files.content_hash();
  });
  const std::vector<std::string> contents = gather_text(*group_, hash.to_text());
  data_content_ = contents[static_cast<std::size_t>(first)];
  const std::vector<std::string> prints =
      gather_text(*group_, fmt::format("{} {}", files.fingerprint(), data_content_));
  for (std::size_t r = 1; r < prints.size(); ++r)
    check(prints[r] == prints[0], "rank {} sees other data at {} than rank 0: {}; all ranks need the same files", r,
          config_.data,
          prints[r].substr(0, prints[r].find(' ')) == prints[0].substr(0, prints[0].find(' '))
              ? "names and sizes are equal, the content is not"
              : "names or sizes of the files differ");
  if (hash.is_sampled() && group_->rank() == 0)
    say_on_stderr(
        fmt::format("the data at {} has {} bytes: {} of them, evenly spread, stand for its content when "
                    "ranks and resumes are compared",
                    config_.data, hash.all_bytes, hash.hashed_bytes));
}

// The same on all ranks, which have agreed on the data.
void Trainer::check_data_of(const Manifest& saved) {
  check(std::to_string(data_->files().fingerprint()) == saved.state_value<std::string>("data"),
        "resume from {}: the data at {} is not what the checkpoint was trained on: names or sizes of the files differ",
        config_.resume, config_.data);
  if (!saved.state.contains("data_content")) return;  // of a program that did not look into the files
  check(data_content_ == saved.state_value<std::string>("data_content"),
        "resume from {}: the data at {} is not what the checkpoint was trained on: names and sizes are equal, the "
        "content is not",
        config_.resume, config_.data);
}

// The state, the order of the data and the keys of dropout are those of the save on any number of ranks; sums are not.
void Trainer::say_what_changes(const TrainConfig& saved) {
  if (group_->rank() != 0) return;
  const Manifest& save = resumed_->manifest();
  const auto say = [&](std::string_view what) {
    say_on_stderr(fmt::format("resume from {}: {}", config_.resume, what));
  };
  if (save.world_size != group_->size() || saved.mesh != asked_mesh_ || saved.strategy != config_.strategy ||
      saved.device != config_.device)
    say(fmt::format("saved by {} rank{}, and gone on with by {}: the state is the same, later steps differ by rounding",
                    save.world_size, save.world_size == 1 ? "" : "s", group_->size()));
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

void Trainer::open_initial() {
  initial_ = std::make_unique<Weights>(config_.init_from, *group_);
  initial_->check_fits(config_.model);
  if (!initial_->vocabulary()) return;
  const std::string_view kind = name(initial_->vocabulary()->kind());
  check(kind == config_.vocabulary, "vocabulary = {}, but the weights in {} are for {}", config_.vocabulary,
        config_.init_from, kind);
}

// Before anything is computed: a run that could not save, or would remove what another one has saved, does not start.
void Trainer::claim_save_folder() {
  namespace fs = std::filesystem;
  together(*group_, [&] {
    if (group_->rank() != 0) return;
    if (resumed_) run_ = resumed_->manifest().run;
    if (run_.empty()) run_ = random_hex(16);
    if (const RankInfo rank = discover_rank(); rank.source == "sherd run") job_ = rank.job;
    save_lock_.emplace(config_.save, fmt::format("run {} (process {})", run_, ::getpid()));
    const std::vector<SavePlace> saves = list_saves(config_.save);
    if (saves.empty()) return;
    std::error_code ignored;
    const bool goes_on_here = resumed_ && (fs::equivalent(resumed_->dir(), config_.save, ignored) ||
                                           fs::equivalent(fs::path(resumed_->dir()) / "..", config_.save, ignored));
    retention_.replace = config_.overwrite && !goes_on_here;
    if (config_.overwrite) return;
    const std::string holds =
        fmt::format("\"{}\" holds the saves of a run, the newest of step {}", config_.save, saves.front().step);
    check(goes_on_here, "{}. Go on with it by --resume {}, replace it by --overwrite, or save to another folder", holds,
          config_.save);
    // Newer ones that were passed over are damaged.
    check(fs::equivalent(config_.resume, config_.save, ignored) || saves.front().folder == resumed_->dir() ||
              fs::equivalent(saves.front().folder, resumed_->dir(), ignored),
          "{}; this run goes back to step {}. Drop the later ones by --overwrite, or save to another folder", holds,
          resumed_->manifest().step);
  });
}

void Trainer::build() {
  if (resumed_)
    together(*group_, [&] { check_parameters(*resumed_, model_config(config_.model, data_->vocabulary().size())); });
  Allocator& memory = RankContext::current().allocator(device_);
  if (config_.explain_peak && group_->rank() == 0)
    memory_log_.emplace(
        memory, [this](MemoryPicture& picture) { nn::name_by_slots(picture, step_ ? &step_->model() : nullptr); });
  try {
    step_.emplace(config_, *mesh_, device_, data_->vocabulary().size());
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

// Damage shows where bytes are read: by then the run has been built for the save, and goes on with the one before it,
// if that is of the same run.
void Trainer::resume() {
  resumed_ = nn::use_newest_good(
      config_.resume, *group_, [this](const CheckpointReader& save) { load(save); }, say_on_stderr,
      std::move(resumed_));
  together(*group_, [&] {
    const Manifest& manifest = resumed_->manifest();
    first_step_ = manifest.step;
    if (manifest.state.contains("skipped_steps")) skipped_steps_ = manifest.state_value<std::int64_t>("skipped_steps");
    if (manifest.state.contains("skipped_batches"))
      skipped_ = SkippedBatches(manifest.state_value<std::string>("skipped_batches"), config_.resume);
    check(first_step_ <= config_.steps, "resume from {}: it has made {} steps, this run asks for {} in all",
          config_.resume, first_step_, config_.steps);
  });
  resumed_.reset();
}

void Trainer::prepare_saves() {
  try {
    saver_.emplace(*group_);
    saver_->reserve(state());
  } catch (OutOfMemory& error) {
    explain(error);
    throw;
  }
}

nn::SnapshotCost Trainer::cost_of_saves() const { return saver_ ? saver_->counts().cost : nn::SnapshotCost(); }

void Trainer::finish_save() {
  if (saver_) saver_->finish();
}

void Trainer::load(const CheckpointReader& save) {
  check_recipe_of(save.manifest());
  check_data_of(save.manifest());
  check(save.manifest().vocabulary == data_->vocabulary().to_text(),
        "resume from {}: \"{}\" has another vocabulary than the later saves, which are damaged; name it by its folder",
        config_.resume, save.dir());
  const std::vector<nn::StateEntry> entries = state();
  std::set<std::pair<std::string, std::string>> wanted;
  for (const nn::StateEntry& entry : entries)
    if (!entry.usually || save.contains(entry.kind, entry.name)) wanted.emplace(entry.kind, entry.name);
  save.require_exactly(wanted);
  nn::load_checkpoint(save, entries);
}

std::pair<Tensor, Tensor> Trainer::training_batch(std::int64_t step) {
  const std::int64_t sequence = config_.model.sequence, micro = local_batch_ / config_.accumulate;
  const std::int64_t batch = skipped_.batch_of(step);
  std::vector<std::int32_t> windows(static_cast<std::size_t>(local_batch_ * (sequence + 1)));
  for (std::int64_t i = 0; i < local_batch_; ++i) {
    // Micro-batch m of all ranks together is the same run of samples on any number of ranks, or dropout would differ.
    const std::int64_t sample = (i / micro * mesh_->num_data_ranks() + mesh_->data_rank()) * micro + i % micro;
    data_->training_window(static_cast<std::uint64_t>(config_.seed), batch, sample,
                           std::span(windows).subspan(static_cast<std::size_t>(i * (sequence + 1)),
                                                      static_cast<std::size_t>(sequence + 1)));
  }
  auto [tokens, targets] = to_tensors(windows, local_batch_, sequence);
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

double Trainer::evaluate() { return *evaluate_unless_stopped({}); }

std::optional<double> Trainer::evaluate_unless_stopped(const StopPoll& stop) {
  const StageMark stage("an evaluation");
  GradMode off(false);
  model().train(false);
  const std::int64_t sequence = config_.model.sequence;
  std::int64_t windows = data_->num_validation_windows(sequence);
  if (config_.eval_batches > 0) windows = std::min(windows, config_.eval_batches * config_.batch);
  double loss_sum = 0, count = 0;
  HostReads reads;
  // Every rank runs equally many forwards; windows past the end are padding that no target counts.
  bool stopped = false;
  for (std::int64_t start = 0; start < windows && !stopped; start += config_.batch) {
    std::vector<std::int32_t> batch(static_cast<std::size_t>(local_batch_ * (sequence + 1)), 0);
    std::int64_t real = 0;
    for (std::int64_t i = 0; i < local_batch_; ++i) {
      const std::int64_t index = start + mesh_->data_rank() * local_batch_ + i;
      if (index >= windows) break;
      data_->validation_window(index, std::span(batch).subspan(static_cast<std::size_t>(i * (sequence + 1)),
                                                               static_cast<std::size_t>(sequence + 1)));
      ++real;
    }
    auto [tokens, targets] = to_tensors(batch, local_batch_, sequence);
    std::fill_n(targets.mutable_data<std::int32_t>() + real * sequence, (local_batch_ - real) * sequence, -100);
    const auto tokens_here = static_cast<double>(real * sequence);
    const Tensor loss = model()(to(std::move(tokens), device_), to(std::move(targets), device_)).local();
    if (real > 0)
      reads.push({loss}, [&loss_sum, tokens_here](std::span<const double> v) { loss_sum += v[0] * tokens_here; });
    count += tokens_here;
    stopped = agreed_stop(stop) != 0;
  }
  reads.finish();
  model().train(true);
  if (stopped) return std::nullopt;
  double totals[] = {loss_sum, count};
  const FlatPart part{totals, DType::f64, 2};
  mesh_->data_group().host().all_reduce({&part, 1}, {});
  return totals[0] / totals[1];
}

void Trainer::save(std::int64_t step) {
  const StageMark stage("a save");
  Manifest manifest;
  manifest.step = step;
  TrainConfig asked = config_;
  asked.mesh = asked_mesh_;
  manifest.config = to_toml(asked);
  manifest.vocabulary = data_->vocabulary().to_text();
  manifest.state["data"] = std::to_string(data_->files().fingerprint());
  manifest.state["data_content"] = data_content_;
  manifest.run = run_;
  if (!job_.empty()) manifest.state[kJobOfSave] = job_;
  if (skipped_steps_ > 0) manifest.state["skipped_steps"] = skipped_steps_;
  if (skipped_.count() > 0) manifest.state["skipped_batches"] = skipped_.text();
  if (saver_) saver_->start(config_.save, std::move(manifest), state(), retention_);
  else nn::save_checkpoint(config_.save, std::move(manifest), state(), *group_, retention_);
  retention_.replace = false;
  saved_at_ = std::chrono::steady_clock::now();
}

// What one rank is asked for, all do.
Trainer::Wishes Trainer::agreed(Wishes own) {
  std::int64_t wishes[] = {own.stop, own.save ? 1 : 0};
  const FlatPart part{wishes, DType::i64, 2};
  group_->host().all_reduce({&part, 1}, {.kind = ReduceKind::max});
  return {static_cast<int>(wishes[0]), wishes[1] != 0};
}

int Trainer::agreed_stop(const StopPoll& stop) { return stop ? agreed({.stop = stop()}).stop : 0; }

Trainer::Wishes Trainer::agreed_wishes(const Polls& polls) {
  const bool saves_by_time = !config_.save.empty() && config_.save_minutes > 0;
  if (!polls.stop && !polls.save && !saves_by_time) return {};
  Wishes own;
  if (polls.stop) own.stop = polls.stop();
  if (polls.save) own.save = polls.save();
  if (saves_by_time && group_->rank() == 0) own.save = own.save || is_time_to_save();
  return agreed(own);
}

bool Trainer::is_time_to_save() const {
  const std::chrono::duration<double, std::ratio<60>> since = std::chrono::steady_clock::now() - saved_at_;
  return since.count() >= config_.save_minutes;
}

DivergenceRule Trainer::divergence_rule() {
  const nn::LossScaler* const scaler = step_->scaler();
  return {.skips = config_.on_nonfinite == "skip",
          .min_loss_scale = scaler ? scaler->options().min_scale : 0,
          .spike = config_.spike};
}

// A run that may have to go back needs something to go back to.
void Trainer::save_before_the_first_step() {
  if (config_.on_nonfinite != "rollback") return;
  bool is_lacking = false;
  together(*group_, [&] {
    if (group_->rank() != 0) return;
    const std::vector<SavePlace> saves = list_saves(config_.save);
    is_lacking = retention_.replace || saves.empty() || saves.front().step != first_step_;
  });
  if (agreed({.save = is_lacking}).save) save(first_step_);
}

// The state of the last good save, and the batches after it but the one that was too much. Returns its step.
std::int64_t Trainer::roll_back(StepLog& log) {
  const Divergence found = *log.diverged();
  log.finish();
  finish_save();
  auto reader = nn::open_newest_good(config_.save, *group_, nn::Verify::files, say_on_stderr);
  if (reader->manifest().step == rolled_back_to_ && rollbacks_in_a_row_ == kMostRollbacks) fail_diverged(found);
  reader = nn::use_newest_good(
      config_.save, *group_, [this](const CheckpointReader& save) { nn::load_checkpoint(save, state()); },
      say_on_stderr, std::move(reader));
  const std::int64_t step = reader->manifest().step;
  rollbacks_in_a_row_ = step == rolled_back_to_ ? rollbacks_in_a_row_ + 1 : 1;
  rolled_back_to_ = step;
  skipped_.skip_batch_of(found.metrics.step - 1);
  if (group_->rank() == 0)
    say_on_stderr(fmt::format("step {} has diverged: {}; back to step {}, and on without the batch of step {}",
                              found.metrics.step, found.what, step, found.metrics.step));
  log.roll_back();
  return step;
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
  nn::check_replicas(state(), fmt::format("step {}, without batches {}", step, skipped_.text()), *group_);
}

void Trainer::save_and_stop(std::int64_t step, int signal) {
  try {
    save(step);
    finish_save();
  } catch (const Error& error) {
    throw ExitError(kStoppedWithoutSave, fmt::format("stopped by {} after step {}, and could not save: {}",
                                                     signal_name(signal), step, error.what()));
  }
}

int Trainer::run_step(std::int64_t step, StepTrace& trace, StepLog& log, const Polls& polls) {
  const bool is_last = step + 1 == config_.steps;
  const auto is_due = [&](std::int64_t every) { return is_last || (every > 0 && (step + 1) % every == 0); };
  log.begin();
  const nn::SnapshotCost cost_before = cost_of_saves();
  {
    const StepTrace::Step traced(trace, step + 1);
    const TrainStep::Result out = train_step(step);
    StepMetrics known;
    known.step = step + 1;
    known.lr = step_->learning_rate(step);
    known.tokens = config_.batch * config_.model.sequence;
    if (saver_ && saver_->is_in_flight()) {
      const nn::SnapshotCost cost = cost_of_saves();
      known.save = {cost.copied_bytes - cost_before.copied_bytes, cost.seconds - cost_before.seconds};
    }
    log.end(known, out);
  }
  if (is_due(config_.eval_every)) {
    StepMetrics metrics = log.finish_but_last();
    if (!log.diverged()) {
      const RunClock::Pause pause(log.clock());
      metrics.val_loss = evaluate_unless_stopped(polls.stop);
    }
    metrics.times = log.clock().times();
    log.report(metrics);
  } else {
    log.poll();
  }
  trace.after(step + 1);
  if (saver_) saver_->poll();
  const Wishes wishes = is_last ? Wishes() : agreed_wishes(polls);
  const bool saves = !config_.save.empty() && (is_due(config_.save_every) || wishes.save || wishes.stop != 0);
  if (saves) log.finish();
  skipped_steps_ = step_->scaler() ? 0 : log.summary().skipped_steps;  // a scaler's are in its own state
  if (log.diverged()) {
    if (config_.on_nonfinite == "rollback") return wishes.stop;  // run() goes back
    fail_diverged(*log.diverged());
  }
  if (config_.check_replicas > 0 && (saves || (step + 1) % config_.check_replicas == 0)) compare_replicas(step + 1);
  if (wishes.stop == 0 && !saves) return 0;
  const RunClock::Pause pause(log.clock());  // copies what was counted
  if (wishes.stop != 0) save_and_stop(step + 1, wishes.stop);
  else save(step + 1);
  return wishes.stop;
}

TrainSummary Trainer::run(const StepObserver& observe, const StopPoll& stop, const SavePoll& save) {
  StepTrace trace(config_.trace, config_.trace_steps, first_step_, config_.steps, *group_);
  StepLog log(*group_, RankContext::current().allocator(device_).accounting(), first_step_, skipped_steps_,
              divergence_rule(), observe);
  const auto start = std::chrono::steady_clock::now();
  saved_at_ = start;
  int signal = 0;
  std::int64_t step = first_step_;
  try {
    save_before_the_first_step();
    while (step < config_.steps && signal == 0) {
      signal = run_step(step++, trace, log, {stop, save});
      if (log.diverged()) step = roll_back(log);
    }
    finish_save();
  } catch (OutOfMemory& error) {
    log.finish_quietly();
    explain(error);
    throw;
  } catch (...) {
    log.finish_quietly();
    throw;
  }
  TrainSummary summary = log.summary();
  summary.times = log.clock().times();
  if (memory_log_) summary.peak = memory_log_->peak();
  if (saver_) summary.saves = saver_->counts();
  summary.stopped_by = signal;
  summary.steps = step;
  summary.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return summary;
}

}  // namespace sherd
