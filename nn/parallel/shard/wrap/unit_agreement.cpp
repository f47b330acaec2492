#include "nn/parallel/shard/wrap/unit_agreement.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "nn/parallel/shard/wrap/unit_table.h"
#include "nn/parallel/shard/wrap/wrap.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/comm/group/subject.h"
#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"
#include "runtime/exec/queue.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

void add_unit(Facts& units, int num_before, std::string_view name, const Facts& settings) {
  units.emplace_back(fmt::format("unit {}", num_before), fmt::format("\"{}\"", name));
  for (const auto& [setting, value] : settings)
    units.emplace_back(fmt::format("unit \"{}\": {}", name, setting), value);
}

namespace {

// ---- the exchange ----

constexpr std::string_view kSubject = "the units of fully_shard, which ranks compare";
constexpr char kDiffers = '!';  // before a difference that a rank has heard of; hashes have none

/// Every rank's text, over the lane of the gathers that the units would begin with.
std::vector<std::string> tell_all(ProcessGroup& group, const std::string& text) {
  HostGroup& lane = lane_of(group, kGatherQueue);
  std::vector<std::string> said;
  const auto run = [&] {
    const comm::SubjectScope scope(kSubject);
    said = gather_text(lane, text);
  };
  RankContext::current()
      .queue(kGatherQueue)
      .submit({.name = "agree", .run = run, .abort = [&lane](std::string_view reason) { lane.abort(reason); }})
      .wait();
  return said;
}

/// Facts of the units that communicate over this group, in their order: ranks that share another axis only may have
/// others, as the experts of expert parallelism.
Facts facts_over(std::span<Wrap* const> hooks, const ProcessGroup& group) {
  Facts units;
  int num_units = 0;
  for (const Wrap* hook : hooks)
    if (const std::optional<Facts> settings = hook->facts_over(group))
      add_unit(units, num_units++, hook->name(), *settings);
  return units;
}

/// The ranks have the numbers that their root group gives them.
std::string difference_in(const std::vector<std::string>& texts) {
  std::vector<int> ranks;
  std::vector<Facts> said;
  for (const std::string& text : texts) {
    said.push_back(facts_from_text(text));
    ranks.push_back(std::stoi(said.back()[0].second));
    said.back().erase(said.back().begin());
  }
  return first_difference(ranks, said);
}

/// What is told in one group is told in the next, so it reaches all. Empty if units are the same.
std::string difference_over(std::span<ProcessGroup* const> groups, std::span<Wrap* const> hooks) {
  std::string told;
  for (ProcessGroup* group : groups) {
    Facts own = facts_over(hooks, *group);
    const std::string hash = fmt::format("{:016x}", hash_facts(own));
    const std::vector<std::string> said = tell_all(*group, told.empty() ? hash : kDiffers + told);
    if (std::ranges::all_of(said, [&](const std::string& text) { return text == said[0]; })) continue;
    const auto told_here = std::ranges::find_if(said, [](const std::string& text) { return text[0] == kDiffers; });
    own.emplace(own.begin(), "rank", std::to_string(hooks[0]->root_group().rank()));
    if (told_here == said.end()) told = difference_in(tell_all(*group, facts_to_text(own)));
    else if (told.empty()) told = told_here->substr(1);
  }
  return told;
}

bool has_axis(const DeviceMesh& mesh, const ProcessGroup& group) {
  for (int axis = 0; axis < mesh.ndim(); ++axis)
    if (&mesh.group(axis) == &group) return true;
  return false;
}

/// Whether its gathers and reductions go over the group, or the layers of its parameters do.
bool communicates_over(const Unit& unit, const ProcessGroup& group) {
  if (has_axis(unit.data.mesh(), group)) return true;
  for (const std::size_t i : indices(unit.pieces))
    if (const Spec* const gathered = unit.pieces.placement(i).gathered)
      if (has_axis(gathered->mesh(), group)) return true;
  return false;
}

void add_axes(const DeviceMesh& mesh, std::vector<ProcessGroup*>& groups) {
  for (int axis = mesh.ndim() - 1; axis >= 0; --axis)
    if (ProcessGroup* const group = &mesh.group(axis); mesh.size(axis) > 1)
      if (std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
}

/// Groups of axes that shard come first: ranks that go on without comparing meet in them. Groups of tensor parallelism
/// come last.
std::vector<ProcessGroup*> groups_along_axes(std::span<Wrap* const> hooks) {
  std::vector<ProcessGroup*> groups;
  for (const Wrap* hook : hooks) {
    add_axes(hook->data().mesh(), groups);
    for (const auto& unit : hook->units) add_axes(unit->data.mesh(), groups);
  }
  for (const Wrap* hook : hooks)
    for (const auto& unit : hook->units)
      for (const std::size_t i : indices(unit->pieces))
        if (const Spec* const gathered = unit->pieces.placement(i).gathered) add_axes(gathered->mesh(), groups);
  return groups;
}

}  // namespace

void agree_on_units(std::span<Wrap* const> hooks) { agree_on_units(hooks, groups_along_axes(hooks)); }

void agree_on_units(std::span<Wrap* const> hooks, std::span<ProcessGroup* const> groups) {
  const PurposeScope purpose("the first forward, where units are compared");
  if (hooks.empty() || groups.empty() || RankContext::current().is_ghost()) return;
  const std::string told = difference_over(groups, hooks);
  if (told.empty()) return;
  const std::string reason = fmt::format(
      "fully_shard: ranks have different units; {}. Call it for the same modules with the same policy on "
      "all ranks",
      told);
  std::set<ProcessGroup*> roots;
  for (const Wrap* hook : hooks)
    if (roots.insert(&hook->root_group()).second) hook->root_group().abort(reason);
  fail("{}", reason);
}

// ---- what the facts are ----

namespace {

std::string names_of(const std::vector<std::weak_ptr<Wrap>>& list) {
  std::string names;
  for (const auto& weak : list)
    if (const auto hook = weak.lock()) names += (names.empty() ? "" : ", ") + hook->name();
  return names.empty() ? "none" : names;
}

std::string name_of(std::optional<DType> dtype) { return dtype ? std::string(name(*dtype)) : "unset"; }

/// "to 2 ranks" where it reshards to some of them. The default of a unit that was told nothing depends on being the
/// root, which is known only once there is a tree.
std::string resharding_of(const Wrap& hook) {
  for (const auto& unit : hook.units)
    if (const int slices = unit->slices()) return fmt::format("to {} ranks", slices);
  const GatherKnobs& knobs = hook.knobs.all();
  return !knobs.is_told ? "the default" : knobs.reshards ? "true" : "false";
}

std::string parameter_of(const Unit& unit, std::size_t i) {
  const Parameter* const p = unit.pieces.parameter(i);
  if (!p) return "destroyed";
  const UnitPiece& piece = unit.pieces.layout().pieces[i];
  const Spec* const gathered = unit.pieces.placement(i).gathered;
  return fmt::format("{} {}, gathered as {}{}, reduced in {} to {}", p->name(), describe(p->sharded_value()),
                     name(piece.full_dtype), gathered ? gathered->describe() : "", name(piece.wire),
                     name(piece.gradient_dtype()));
}

/// Names every part of a unit but the first.
void add_facts_of(const Unit& unit, bool is_first, Facts& facts) {
  const std::string of_part = is_first ? "" : fmt::format(" of its part \"{}\"", unit.pieces.layout().name);
  const auto add = [&](std::string_view setting, std::string value) {
    facts.emplace_back(fmt::format("{}{}", setting, of_part), std::move(value));
  };
  add("the mesh", unit.data.mesh().describe());
  add("the number of shards", fmt::format("{}", unit.data.num_shards()));
  for (const std::size_t i : indices(unit.pieces)) add(fmt::format("parameter {}", i), parameter_of(unit, i));
  add("its gather", unit.buffers.levels().has_custom_gather() ? "one of the user's own" : "the usual one");
  const ReductionKnobs& knobs = unit.settings().knobs.all();
  const auto text = [](bool on) { return std::string(on ? "true" : "false"); };
  add("the gradient divide factor", fmt::format("{}", knobs.divide_factor));
  add("requires_gradient_sync", text(knobs.syncs));
  add("requires_all_reduce", text(knobs.all_reduces));
  add("reduce_unused", text(knobs.reduces_unused));
  add("what accumulates", knobs.accumulated == ShardedOver::none     ? "full gradients"
                          : knobs.accumulated == ShardedOver::shards ? "shards"
                                                                     : "shards over all ranks");
  add("the order of their sum", knobs.sums_in_tree ? "a tree" : "one after the other");
  add("its reduction", unit.settings().reduce ? "one of the user's own" : "the usual one");
  add("its all-reduce hook", unit.settings().hook ? "set" : "none");
}

}  // namespace

std::string strategy_of(const PlannedCall& call) {
  const UnitPolicy& policy = call.policy;
  const std::string_view preset = strategy_name(policy, call.data.mesh().ndim() > 1);
  if (!preset.empty()) return std::string(preset);
  constexpr std::string_view over[] = {"none", "shards", "all"};
  return fmt::format("of parameters over {} and the optimizer over {}", over[static_cast<int>(policy.parameters)],
                     over[static_cast<int>(policy.optimizer)]);
}

std::optional<Facts> Wrap::facts_over(const ProcessGroup& group) const {
  std::vector<const Unit*> parts;
  for (const auto& unit : units)
    if (communicates_over(*unit, group)) parts.push_back(unit.get());
  if (parts.empty() && !has_axis(mesh_.mesh(), group)) return std::nullopt;
  Facts facts;
  const auto add = [&](std::string setting, std::string value) {
    facts.emplace_back(std::move(setting), std::move(value));
  };
  const auto text = [](bool on) { return std::string(on ? "true" : "false"); };
  add("the mesh of its call", mesh_.mesh().describe());
  add("the strategy", strategy_);
  add("reshard_after_forward", resharding_of(*this));
  add("prefetch", text(prefetches_));
  add("the forward prefetch", names_of(forward_prefetch_));
  add("the backward prefetch", names_of(backward_prefetch_));
  add("param_dtype", name_of(policy_.param_dtype));
  add("output_dtype", name_of(policy_.output_dtype));
  add("cast_forward_inputs", text(policy_.cast_forward_inputs));
  add("the number of its parts", fmt::format("{}", parts.size()));
  for (const Unit* unit : parts) add_facts_of(*unit, unit == units.front().get(), facts);
  return facts;
}

}  // namespace sherd::nn
