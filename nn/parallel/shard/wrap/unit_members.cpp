#include "nn/parallel/shard/wrap/unit_members.h"

#include <algorithm>

#include "nn/shard_keeper.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

std::string axes_of(const DeviceMesh& mesh) {
  std::string names;
  for (const int axis : up_to(mesh.ndim())) names += (axis ? "," : "") + mesh.axis_name(axis);
  return names;
}

}  // namespace

std::int64_t elements_per_rank(const Parameter& parameter) {
  const Tensor& value = parameter.value();
  std::int64_t parts = 1;
  if (value.is_distributed()) {
    const Spec& spec = Spec::from(value);
    for (const int axis : up_to(spec.num_axes()))
      if (spec.placement(axis).is_shard()) parts *= spec.axis_size(axis);
  }
  return (parameter.numel() + parts - 1) / parts;
}

void check_ignored(const std::vector<const Parameter*>& ignored) {
  for (const Parameter* p : ignored) {
    check(p != nullptr, "fully_shard: a null pointer is among the ignored parameters");
    check(!ShardKeeper::of(*p), "fully_shard: parameter \"{}\" is to be ignored, but a unit has it already", p->name());
  }
}

std::vector<UnitMembers> unit_members(const std::string& name, const std::vector<Parameter*>& parameters,
                                      const DeviceMesh& mesh, const UnitPolicy& policy) {
  check(policy.replicate_below_bytes >= 0, "fully_shard: replicate_below_bytes = {} must not be negative",
        policy.replicate_below_bytes);
  std::vector<UnitMembers> units;
  const auto unit_for = [&](const DeviceMesh& on, bool is_replicated) -> UnitMembers& {
    const auto known = std::ranges::find_if(
        units, [&](const UnitMembers& each) { return each.data.mesh() == on && each.is_replicated == is_replicated; });
    if (known != units.end()) return *known;
    std::string own = name;
    if (on != mesh) own += "/" + axes_of(on);
    if (is_replicated) own += "/replicated";
    return units.emplace_back(
        UnitMembers{.name = std::move(own),
                    .data = is_replicated ? DataMesh(on, ShardedOver::none) : data_mesh(on, policy),
                    .is_replicated = is_replicated});
  };
  for (Parameter* p : parameters) {
    const std::optional<DeviceMesh> own = policy.mesh_of ? policy.mesh_of(*p) : std::nullopt;
    const DeviceMesh& on = own ? *own : mesh;
    if (on != mesh) check_policy(policy, on);
    UnitMembers& sharded = unit_for(on, false);
    const bool is_small = elements_per_rank(*p) * byte_size(p->value().dtype()) < policy.replicate_below_bytes;
    UnitMembers& unit = is_small && sharded.data.num_shards() > 1 ? unit_for(on, true) : sharded;
    unit.parameters.push_back(p);
    unit.types.push_back(types_for(policy.mp_policy, *p));
  }
  std::erase_if(units, [](const UnitMembers& each) { return each.parameters.empty(); });
  std::ranges::stable_partition(units, [&](const UnitMembers& each) { return each.data.mesh() == mesh; });
  return units;
}

}  // namespace sherd::nn
