#include "tools/train/regroup.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/ranges.h>

#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/tensor/indices.h"
#include "tools/train/gather_attrs.h"

namespace sherd::train {

namespace {

using Seconds = std::chrono::duration<double>;

int axis_of_replicas(const DeviceMesh& root) {
  for (const int axis : up_to(root.ndim()))
    if (root.axis_name(axis) == "replicate") return axis;
  fail("a run outlives replicas only where its mesh has an axis for them; {} has none", root.describe());
}

/// A rank's coordinate among the replicas.
struct OfReplica {
  int replica = 0;
  static constexpr AttrField fields[] = {attr<&OfReplica::replica>("replica")};
};

/// The first replica all of whose ranks have the state; nothing if there is none.
std::optional<int> whole_replica(const std::vector<int>& replica_of, const std::vector<bool>& has_state) {
  const int replicas = *std::ranges::max_element(replica_of) + 1;
  for (const int replica : up_to(replicas)) {
    bool is_whole = true;
    for (const std::size_t rank : indices(replica_of))
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

// Whether the last step is open each may see differently.
void Regroup::take_over(RunState& state, RunSaves& saves, ProcessGroup& group) {
  if (!goes_on()) return;
  const bool has_state = place_->has_state[static_cast<std::size_t>(group.rank())];
  std::optional<RunRecord> record;
  bool is_open = false, owes_save = false;
  for (const std::string& text : gather_text(group, has_state ? to_text(place_->record) : "")) {
    if (text.empty()) continue;
    const RunRecord each = run_record_from_text(text);
    is_open = is_open || each.state.is_step_open;
    owes_save = owes_save || each.state.owes_save;
    if (!record) record = each;
  }
  check(record.has_value(), "no replica is left that has the state of the run");
  place_->record = *std::move(record);
  saves.take_over(place_->record);
  state = place_->record.state;
  state.updates = place_->updates;
  state.is_step_open = is_open;
  state.owes_save = owes_save;
  state.owed_line.clear();  // the evaluation of a step that is open is made again
}

void Regroup::give_state(const std::vector<nn::StateEntry>& state, const DeviceMesh& root, ProcessGroup& group) {
  const int axis = axis_of_replicas(root);
  std::vector<int> replica_of;
  for (const OfReplica& rank : gather_attrs(group, OfReplica{root.coordinate(axis)}))
    replica_of.push_back(rank.replica);
  const std::optional<int> holder = whole_replica(replica_of, place_->has_state);
  check(holder.has_value(), "no replica is left that has the whole state of the run");
  const bool all_have = std::ranges::find(place_->has_state, false) == place_->has_state.end();
  std::optional<ckpt::StateHolders> holders;
  if (!all_have) holders.emplace(root.group(axis), *holder);
  for (const std::size_t rank : indices(replica_of))
    if (!place_->has_state[rank]) newcomers_.insert(place_->replicas[static_cast<std::size_t>(replica_of[rank])]);
  place_->state->give(state, holders);
  group.host().barrier();
  place_->state = nullptr;
}

// What the step to come has cost, and who takes part in it.
void Regroup::say(const RunState& state, ProcessGroup& group, TimePoint start) {
  if (!goes_on()) return;
  const std::vector<int> newcomers(newcomers_.begin(), newcomers_.end());
  const std::vector<int> now = without(place_->replicas, newcomers);  // one may be lost and back again already
  StepMetrics::Regroup regroup{.lost = without(place_->record.replicas, now), .returned = newcomers};
  regroup.seconds = place_->seconds_before + Seconds(std::chrono::steady_clock::now() - start).count();
  SurvivalCounts& counts = place_->record.counts;
  counts.lost += static_cast<std::int64_t>(regroup.lost.size());
  counts.returned += static_cast<std::int64_t>(regroup.returned.size());
  (regroup.lost.empty() ? counts.returned_seconds : counts.lost_seconds) += regroup.seconds;
  const std::optional<StepMetrics::Regroup> untold = std::exchange(place_->record.regroup, std::nullopt);
  untold_ = untold ? merged(*untold, regroup, place_->replicas) : regroup;
  if (group.rank() != 0) return;
  std::string text;
  if (!regroup.lost.empty())
    text = fmt::format("{} {} lost in step {}", replicas_text(regroup.lost), regroup.lost.size() == 1 ? "was" : "were",
                       state.updates + (state.is_step_open ? 0 : 1));
  if (!regroup.returned.empty())
    text += fmt::format("{}{} {} back after step {}, with the state of others' memory", text.empty() ? "" : "; ",
                        replicas_text(regroup.returned), regroup.returned.size() == 1 ? "is" : "are", state.updates);
  say_on_stderr(
      fmt::format("{}: means are over {} of {} replicas from step {} on; a new group of {} rank{} in {:.2f} s",
                  text.empty() ? "the group was formed again" : text, place_->replicas.size(), place_->num_replicas,
                  state.updates + 1, group.size(), group.size() == 1 ? "" : "s", regroup.seconds));
}

void Regroup::end_step(StepMetrics& metrics) {
  if (!place_) return;
  step_begin_.reset();
  if (std::cmp_less(place_->replicas.size(), place_->num_replicas)) metrics.replicas = place_->replicas;
  metrics.regroup = std::exchange(untold_, std::nullopt);
}

// Whoever asked for a save may be told of a lost rank, not of a save. The next group is not formed beside one that is
// being written: it would be waited for.
void Regroup::add_wish(Wishes& own, RunState& state, const RunSaves& saves, const ProcessGroup& group) const {
  if (!place_) return;
  state.owes_save = state.owes_save || own.save;
  if (group.rank() == 0 && !saves.is_in_flight()) own.regroup = place_->has_next();
}

RunRecord Regroup::record(std::int64_t first_step, const RunState& state, const RunSaves& saves) const {
  RunRecord record = place_->record;
  if (!place_->goes_on) record.first_step = first_step;
  record.state = state;
  record.state.owes_save = state.owes_save || saves.is_in_flight();
  saves.note(record);
  record.replicas = place_->replicas;
  record.regroup = untold_;
  return record;
}

}  // namespace sherd::train
