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

namespace sherd::nn {

namespace {

// ---- facts as text ----

constexpr char kRank = 'R', kUnit = 'U', kSetting = 'S', kBetween = '\t';

/// A line each; the rank's first, the hash is of the others.
std::string text_of(std::span<const UnitFacts> units) {
  std::string text;
  for (const UnitFacts& unit : units) {
    text += fmt::format("{}{}\n", kUnit, unit.unit);
    for (const auto& [setting, value] : unit.settings)
      text += fmt::format("{}{}{}{}\n", kSetting, setting, kBetween, value);
  }
  return text;
}

struct Account {
  int rank = 0;
  std::vector<UnitFacts> units;
};

Account read_account(std::string_view text) {
  Account account;
  while (!text.empty()) {
    const std::size_t end = text.find('\n'), between = text.find(kBetween);
    const std::string_view line = text.substr(1, end - 1);
    if (text[0] == kRank) account.rank = std::stoi(std::string(line));
    else if (text[0] == kUnit) account.units.push_back({std::string(line), {}});
    else
      account.units.back().settings.emplace_back(text.substr(1, between - 1),
                                                 text.substr(between + 1, end - between - 1));
    text.remove_prefix(end + 1);
  }
  return account;
}

// FNV-1a.
std::string hash_of(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return fmt::format("{:016x}", hash);
}

// ---- the difference ----

/// "full_shard on ranks 0, 2; no_shard on rank 1"; empty if all say the same.
std::string by_value(std::span<const int> ranks, const std::vector<std::string>& values) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;  // in the order of ranks
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto known = std::ranges::find(groups, values[i], [](const auto& group) { return group.first; });
    if (known != groups.end()) known->second.push_back(ranks[i]);
    else groups.emplace_back(values[i], std::vector<int>{ranks[i]});
  }
  if (groups.size() < 2) return "";
  std::string text;
  for (const auto& [value, those] : groups)
    text += fmt::format("{}{} on rank{} {}", text.empty() ? "" : "; ", value, those.size() > 1 ? "s" : "",
                        fmt::join(those, ", "));
  return text;
}

template <class List>
auto at_or_null(const List& list, std::size_t i) {
  return i < list.size() ? &list[i] : nullptr;
}

/// How ranks differ in the setting at `place` of a unit that all of them have; a missing setting is "none".
std::string difference_of_setting(std::span<const int> ranks, const std::vector<const UnitFacts*>& units,
                                  std::size_t place) {
  std::vector<std::string> values;
  std::string name;
  for (const UnitFacts* unit : units) {
    const auto* const setting = at_or_null(unit->settings, place);
    values.push_back(setting ? setting->second : "none");
    if (setting && name.empty()) name = setting->first;
  }
  const std::string differs = by_value(ranks, values);
  return differs.empty() ? "" : fmt::format("unit \"{}\": {} is {}", units[0]->unit, name, differs);
}

}  // namespace

std::string first_difference(std::span<const int> ranks, std::span<const std::vector<UnitFacts>> said) {
  std::size_t num_units = 0;
  for (const auto& units : said) num_units = std::max(num_units, units.size());
  for (std::size_t u = 0; u < num_units; ++u) {
    std::vector<std::string> names;
    std::vector<const UnitFacts*> facts;
    std::size_t num_settings = 0;
    for (const auto& units : said) {
      facts.push_back(at_or_null(units, u));
      names.push_back(facts.back() ? fmt::format("\"{}\"", facts.back()->unit) : "none");
      if (facts.back()) num_settings = std::max(num_settings, facts.back()->settings.size());
    }
    if (const std::string differs = by_value(ranks, names); !differs.empty())
      return fmt::format("unit {} is {}", u, differs);
    for (std::size_t s = 0; s < num_settings; ++s)
      if (std::string differs = difference_of_setting(ranks, facts, s); !differs.empty()) return differs;
  }
  return "";
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

std::string difference_in(const std::vector<std::string>& texts) {
  std::vector<int> ranks;
  std::vector<std::vector<UnitFacts>> said;
  for (const std::string& text : texts) {
    Account account = read_account(text);
    ranks.push_back(account.rank);
    said.push_back(std::move(account.units));
  }
  return first_difference(ranks, said);
}

/// Facts of the units that communicate over this group, in their order: ranks that share another axis only may have
/// others, as the experts of expert parallelism.
std::string text_over(std::span<Wrap* const> hooks, const ProcessGroup& group) {
  std::vector<UnitFacts> units;
  for (const Wrap* hook : hooks)
    if (std::optional<UnitFacts> facts = hook->facts_over(group)) units.push_back(std::move(*facts));
  return text_of(units);
}

/// What is told in one group is told in the next, so it reaches all. Empty if units are the same.
std::string difference_over(std::span<ProcessGroup* const> groups, std::span<Wrap* const> hooks) {
  std::string told;
  for (ProcessGroup* group : groups) {
    const std::string own = text_over(hooks, *group);
    const std::vector<std::string> said = tell_all(*group, told.empty() ? hash_of(own) : kDiffers + told);
    if (std::ranges::all_of(said, [&](const std::string& text) { return text == said[0]; })) continue;
    const auto told_here = std::ranges::find_if(said, [](const std::string& text) { return text[0] == kDiffers; });
    const int rank = hooks[0]->root_group().rank();
    if (told_here == said.end()) told = difference_in(tell_all(*group, fmt::format("{}{}\n{}", kRank, rank, own)));
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
  for (std::size_t i = 0; i < unit.pieces.size(); ++i)
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
      for (std::size_t i = 0; i < unit->pieces.size(); ++i)
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
void add_facts_of(const Unit& unit, bool is_first, UnitFacts& facts) {
  const std::string of_part = is_first ? "" : fmt::format(" of its part \"{}\"", unit.pieces.layout().name);
  const auto add = [&](std::string_view setting, std::string value) {
    facts.settings.emplace_back(fmt::format("{}{}", setting, of_part), std::move(value));
  };
  add("the mesh", unit.data.mesh().describe());
  add("the number of shards", fmt::format("{}", unit.data.num_shards()));
  for (std::size_t i = 0; i < unit.pieces.size(); ++i) add(fmt::format("parameter {}", i), parameter_of(unit, i));
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

std::optional<UnitFacts> Wrap::facts_over(const ProcessGroup& group) const {
  std::vector<const Unit*> parts;
  for (const auto& unit : units)
    if (communicates_over(*unit, group)) parts.push_back(unit.get());
  if (parts.empty() && !has_axis(mesh_.mesh(), group)) return std::nullopt;
  UnitFacts facts{name_, {}};
  const auto add = [&](std::string setting, std::string value) {
    facts.settings.emplace_back(std::move(setting), std::move(value));
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
