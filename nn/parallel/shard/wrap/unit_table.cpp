#include "nn/parallel/shard/wrap/unit_table.h"

#include <algorithm>
#include <utility>

#include "nn/module_list.h"
#include "nn/parallel/shard/unit/unit_slices.h"
#include "nn/parallel/shard/wrap/fully_shard_hook.h"
#include "runtime/op/copy/offload_budget.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

bool is_one_of(const std::vector<Module*>& modules, const Module& module) {
  return std::ranges::any_of(modules, [&](const Module* each) { return each == &module; });
}

// Each rank keeps its rows of existing values: all are there or none, in memory that the groups move.
void check_values(const UnitLayout& layout, const std::vector<Parameter*>& parameters) {
  const auto is_on_meta = [](const Parameter* p) { return p->value().local().is_meta(); };
  if (std::ranges::all_of(parameters, is_on_meta)) return;
  for (const Parameter* p : parameters)
    check(!is_on_meta(p),
          "fully_shard: parameter \"{}\" is on meta but others of its unit have values; materialize all or none",
          p->name());
  check_groups(layout, parameters[0]->value().local().device());
}

}  // namespace

std::optional<DeviceMesh> split_of(const DataMesh& data, bool is_replicated, ReshardAfterForward value) {
  const int ranks = is_replicated ? 0 : value.slices(data.num_shards());
  if (ranks == 0) return std::nullopt;
  return split_for_slices(data.mesh(), ranks);
}

bool UnitTable::is_or_will_be_wrapped(const Module& module) const {
  return is_fully_sharded(module) ||
         std::ranges::any_of(calls_, [&](const PlannedCall& call) { return is_one_of(call.modules, module); });
}

// The name of the call that has the parameter, if it is one of a module above; else null.
const std::string* UnitTable::owner_above(const Module& module, const Parameter& parameter) const {
  const ShardKeeper* const keeper = ShardKeeper::of(parameter);
  const auto taker = takers_.find(&parameter);
  for (const Module* above = module.parent(); above; above = above->parent()) {
    const Wrap* const wrap = keeper ? wrap_of(*above) : nullptr;
    if (wrap && wrap->owns(*keeper)) return &wrap->name();
    if (taker == takers_.end()) continue;
    if (const PlannedCall& call = calls_[taker->second]; is_one_of(call.modules, *above)) return &call.name;
  }
  return nullptr;
}

// Wrapping goes from the inside out. Error if a unit above `wrapped` has taken a parameter of it.
void UnitTable::check_inside_out(const Module& wrapped, const Module& module) const {
  for (const Module::NamedParameter& p : module.own_parameters())
    if (const std::string* const owner = owner_above(wrapped, *p.parameter))
      fail(
          "fully_shard: module \"{}\" comes after \"{}\", which is above it and has taken its parameter \"{}\" "
          "already; wrap from the inside out: inner modules first, the model last",
          wrapped.label(), *owner, p.parameter->name());
  for (const auto& child : module.children())
    if (!is_or_will_be_wrapped(*child)) check_inside_out(wrapped, *child);
}

// Parameters used below `module` that no unit has or will have, each once.
void UnitTable::collect_free(Module& module, std::set<const Parameter*>& seen, std::vector<Parameter*>& out) const {
  for (const Module::NamedParameter& p : module.own_parameters())
    if (!ShardKeeper::of(*p.parameter) && !takers_.contains(p.parameter) && seen.insert(p.parameter).second)
      out.push_back(p.parameter);
  for (const auto& child : module.children())
    if (!is_or_will_be_wrapped(*child)) collect_free(*child, seen, out);
}

void UnitTable::add(const std::vector<Module*>& modules, const DeviceMesh& mesh, const UnitPolicy& told) {
  const UnitPolicy policy = on_axes_of(told, mesh);
  if (policy.data_axes) {
    const DeviceMesh data = mesh_of_data(mesh, *policy.data_axes);
    const UnitPolicy of_data = on_data_axes(policy);
    join_for(of_data, data);
    return add(modules, data, of_data);
  }
  check(!modules.empty(), "fully_shard: the list of modules is empty");
  check_policy(policy, mesh);
  check_ignored(policy.ignored);
  std::set<const Parameter*> seen(policy.ignored.begin(), policy.ignored.end());
  std::vector<Parameter*> parameters;
  std::string name;
  for (Module* module : modules) {
    check(module != nullptr, "fully_shard: a null pointer is among the modules");
    check(std::ranges::count(modules, module) == 1, "fully_shard: module \"{}\" is twice in the list; name it once",
          module->label());
    check(!is_container(*module),
          "fully_shard: \"{}\" is a container without a forward, so its hooks would never run; wrap its children one "
          "by one, or pass them "
          "as a list to make one unit",
          module->label());
    check(!is_or_will_be_wrapped(*module), "fully_shard: module \"{}\" is wrapped already", module->label());
    check_inside_out(*module, *module);
    collect_free(*module, seen, parameters);
    name += (name.empty() ? "" : "+") + module->label();
  }
  PlannedCall call{.name = std::move(name), .modules = modules, .data = data_mesh(mesh, policy), .policy = policy};
  for (UnitMembers& members : unit_members(call.name, parameters, mesh, policy))
    call.parts.push_back({.members = std::move(members)});
  if (const auto& reshard = policy.reshard_after_forward) {
    reshard->resolve(call.data.num_shards());
    for (PlannedCall::Part& part : call.parts)
      part.split = split_of(part.members.data, part.members.is_replicated, *reshard);
  }
  for (PlannedCall::Part& part : call.parts) {
    const UnitMembers& members = part.members;
    part.placed = place_unit(members.name, members.data, members.types, members.parameters, policy.placement);
    check_values(*part.placed.layout, members.parameters);
  }
  for (const Parameter* p : parameters) takers_.emplace(p, calls_.size());
  calls_.push_back(std::move(call));
}

namespace {

// Bytes of a unit's shards, and with `gradients` of theirs, on the rank that has most.
std::int64_t bytes_to_offload(const UnitLayout& layout, bool gradients) {
  std::int64_t most = 0;
  for (const int shard : up_to(layout.shards)) {
    std::int64_t bytes = 0;
    for (const UnitPiece& piece : layout.pieces) {
      const std::int64_t count = layout.count(piece, shard);
      bytes += align(count * byte_size(piece.dtype));
      if (gradients) bytes += align(count * byte_size(piece.gradient_dtype()));
    }
    most = std::max(most, bytes);
  }
  return most;
}

// Bytes that may leave memory: what is replicated stays in it anyway.
std::int64_t bytes_to_offload(const PlannedCall& call) {
  if (!call.policy.offload) return 0;
  std::int64_t bytes = 0;
  for (const PlannedCall::Part& part : call.parts)
    if (!part.members.is_replicated) bytes += bytes_to_offload(*part.placed.layout, call.policy.offload->gradients);
  return bytes;
}

}  // namespace

void UnitTable::keep_in_memory(std::int64_t budget) {
  check(budget >= 0, "shard_units: offload with {} bytes of shards in memory; give 0 or more", budget);
  std::vector<std::int64_t> bytes;
  for (const PlannedCall& call : calls_) bytes.push_back(bytes_to_offload(call));
  const std::vector<bool> kept = kept_in_memory(bytes, budget);
  for (const std::size_t i : indices(calls_))
    if (kept[i]) calls_[i].policy.offload.reset();
}

std::vector<UnitHandle> UnitTable::wrap() {
  std::vector<UnitHandle> handles;
  for (PlannedCall& call : calls_) {
    const std::vector<Module*> modules = call.modules;
    const auto wrap = std::make_shared<Wrap>(std::move(call));
    const auto hook = std::make_shared<FullyShardHook>(wrap);
    for (Module* module : modules) module->add_hook(hook);
    handles.emplace_back(wrap);
  }
  calls_.clear();
  takers_.clear();
  return handles;
}

}  // namespace sherd::nn
