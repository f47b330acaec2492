// A Trainer of a run that outlives replicas: what it takes over from the group before, and what it leaves to the next.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/ranges.h>

#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/context.h"
#include "runtime/exec/running_op.h"
#include "tools/train/trainer.h"

namespace sherd {

namespace {

using Seconds = std::chrono::duration<double>;

int axis_of_replicas(const DeviceMesh& root) {
  for (int axis = 0; axis < root.ndim(); ++axis)
    if (root.axis_name(axis) == "replicate") return axis;
  fail("a run outlives replicas only where its mesh has an axis for them; {} has none", root.describe());
}

/// For each rank of the group: its coordinate among the replicas.
std::vector<int> replica_of_ranks(ProcessGroup& group, int own) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  all[static_cast<std::size_t>(group.rank())] = own;
  const std::vector<std::int64_t> counts(all.size(), 1);
  const GatherPart part{all.data(), DType::i64, counts};
  group.host().all_gather({&part, 1});
  return {all.begin(), all.end()};
}

/// The first replica all of whose ranks have the state; nothing if there is none.
std::optional<int> whole_replica(const std::vector<int>& replica_of, const std::vector<bool>& has_state) {
  const int replicas = *std::ranges::max_element(replica_of) + 1;
  for (int replica = 0; replica < replicas; ++replica) {
    bool is_whole = true;
    for (std::size_t rank = 0; rank < replica_of.size(); ++rank)
      is_whole = is_whole && (replica_of[rank] != replica || has_state[rank]);
    if (is_whole) return replica;
  }
  return std::nullopt;
}

std::vector<int> without(const std::vector<int>& all, const std::vector<int>& left_out) {
  std::vector<int> rest;
  std::ranges::set_difference(all, left_out, std::back_inserter(rest));
  return rest;
}

std::vector<int> union_of(const std::vector<int>& some, const std::vector<int>& more) {
  std::vector<int> all;
  std::ranges::set_union(some, more, std::back_inserter(all));
  return all;
}

}  // namespace

StepMetrics::Regroup merged(const StepMetrics::Regroup& first, const StepMetrics::Regroup& second,
                            const std::vector<int>& present) {
  const std::vector<int> came_and_went = without(first.returned, first.lost);
  StepMetrics::Regroup all{.lost = union_of(first.lost, without(second.lost, came_and_went)),
                           .seconds = first.seconds + second.seconds};
  std::ranges::set_intersection(union_of(first.returned, second.returned), present, std::back_inserter(all.returned));
  return all;
}

std::string replicas_text(const std::vector<int>& replicas) {
  return fmt::format("replica{} {}", replicas.size() == 1 ? "" : "s", fmt::join(replicas, ", "));
}

Trainer::Trainer(const TrainConfig& config, std::shared_ptr<ProcessGroup> group, TrainGroup place)
    : config_(config), group_(std::move(group)), place_(std::move(place)) {
  start();
}

// All ranks take that of the first one that has the state; whether the last step is open each may see differently.
void Trainer::take_over_record() {
  const bool has_state = place_->has_state[static_cast<std::size_t>(group_->rank())];
  const std::vector<std::string> texts = gather_text(*group_, has_state ? to_text(place_->record) : "");
  std::optional<RunRecord> record;
  bool is_open = false, owes_save = false;
  for (const std::string& text : texts) {
    if (text.empty()) continue;
    const RunRecord each = run_record_from_text(text);
    is_open = is_open || each.is_step_open;
    owes_save = owes_save || each.owes_save;
    if (!record) record = each;
  }
  check(record.has_value(), "no replica is left that has the state of the run");
  place_->record = *std::move(record);
  first_step_ = place_->updates;
  saves_->take_over(place_->record);
  skipped_ = SkippedBatches(place_->record.skipped_batches, "a rank of the group before");
  skipped_steps_ = place_->record.log.skipped_steps;
  last_line_ = place_->record.last_line;
  is_step_open_ = is_open;
  owes_save_ = owes_save;
  log_ = place_->record.log;
}

void Trainer::take_over_state() {
  const DeviceMesh& root = mesh_->root();
  const int axis = axis_of_replicas(root);
  const std::vector<int> replica_of = replica_of_ranks(*group_, root.coordinate(axis));
  const std::optional<int> holder = whole_replica(replica_of, place_->has_state);
  check(holder.has_value(), "no replica is left that has the whole state of the run");
  const bool all_have = std::ranges::find(place_->has_state, false) == place_->has_state.end();
  std::optional<nn::StateHolders> holders;
  if (!all_have) holders.emplace(root.group(axis), *holder);
  for (std::size_t rank = 0; rank < replica_of.size(); ++rank)
    if (!place_->has_state[rank]) newcomers_.insert(place_->replicas[static_cast<std::size_t>(replica_of[rank])]);
  place_->state->give(state(), holders);
  group_->host().barrier();
  place_->state = nullptr;
}

// What the step to come has cost, and who takes part in it.
void Trainer::say_regrouped(std::chrono::steady_clock::time_point start) {
  const std::vector<int> newcomers(newcomers_.begin(), newcomers_.end());
  const std::vector<int> now = without(place_->replicas, newcomers);  // one may be lost and back again already
  StepMetrics::Regroup regroup{.lost = without(place_->record.replicas, now), .returned = newcomers};
  regroup.seconds = place_->seconds_before + Seconds(std::chrono::steady_clock::now() - start).count();
  SurvivalCounts& counts = place_->record.counts;
  counts.lost += static_cast<std::int64_t>(regroup.lost.size());
  counts.returned += static_cast<std::int64_t>(regroup.returned.size());
  (regroup.lost.empty() ? counts.returned_seconds : counts.lost_seconds) += regroup.seconds;
  const std::optional<StepMetrics::Regroup> untold = std::exchange(place_->record.regroup, std::nullopt);
  regroup_ = untold ? merged(*untold, regroup, place_->replicas) : regroup;
  if (group_->rank() != 0) return;
  std::string text;
  if (!regroup.lost.empty())
    text = fmt::format("{} {} lost in step {}", replicas_text(regroup.lost), regroup.lost.size() == 1 ? "was" : "were",
                       first_step_ + (is_step_open_ ? 0 : 1));
  if (!regroup.returned.empty())
    text += fmt::format("{}{} {} back after step {}, with the state of others' memory", text.empty() ? "" : "; ",
                        replicas_text(regroup.returned), regroup.returned.size() == 1 ? "is" : "are", first_step_);
  say_on_stderr(
      fmt::format("{}: means are over {} of {} replicas from step {} on; a new group of {} rank{} in {:.2f} s",
                  text.empty() ? "the group was formed again" : text, place_->replicas.size(), place_->num_replicas,
                  first_step_ + 1, group_->size(), group_->size() == 1 ? "" : "s", regroup.seconds));
}

// An evaluation and a save that the group before has left, perhaps when they were all but done.
int Trainer::end_step_of_earlier_group(StepLog& log, const RunStops& stops) {
  int signal = 0;
  if (is_step_open_ || owes_save_) {
    if (is_step_open_ && is_due(first_step_, config_.eval_every))
      if (const std::optional<double> loss = evaluate_unless_stopped(stops)) {
        log.note_val_loss(*loss);
        if (!last_line_.empty()) last_line_ = with_val_loss(last_line_, *loss);
      }
    signal = end_step(first_step_, log, stops);
  }
  if (write_last_line_ && group_->rank() == 0 && !last_line_.empty()) write_last_line_(last_line_);
  return signal;
}

// What a step has left in queues, of units that are being gathered too, comes to its end first.
nn::CarriedState Trainer::carry() {
  RankContext::current().drain_queues();
  return nn::CarriedState::take(state());
}

RunRecord Trainer::record() const {
  RunRecord record = place_->record;
  if (!place_->goes_on) record.first_step = first_step_;
  saves_->note(record);
  record.skipped_batches = skipped_.text();
  record.is_step_open = is_step_open_;
  record.owes_save = owes_save_ || saves_->is_in_flight();
  record.last_line = last_line_;
  record.log = log_;
  record.replicas = place_->replicas;
  record.regroup = regroup_;
  return record;
}

}  // namespace sherd
