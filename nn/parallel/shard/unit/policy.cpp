#include "nn/parallel/shard/unit/policy.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "runtime/tensor/error.h"
#include "runtime/tensor/nearest.h"
#include "runtime/tensor/quantity.h"

namespace sherd::nn {

namespace {

struct Preset {
  std::string_view name;
  ShardedOver parameters, optimizer;
  bool needs_replicas = false;
  std::optional<bool> reshards{};  ///< after forward; nothing: all but the root
};

// The first of equal presets is the one that they are called by.
constexpr std::array<Preset, 8> presets() {
  using enum ShardedOver;
  return {{{"full_shard", shards, shards},
           {"shard_grad_op", shards, shards, false, false},
           {"shard_optimizer", none, shards},
           {"no_shard", none, none},
           {"replicate", none, none},
           {"hybrid_shard", shards, shards, true},
           {"hybrid_shard_grad_op", shards, shards, true, false},
           {"hybrid_shard_state", shards, all, true}}};
}

std::string_view text(ShardedOver over) {
  return over == ShardedOver::none ? "none" : over == ShardedOver::shards ? "shards" : "all";
}

// What is sharded over none is gathered from what the optimizer updates, and kept.
ShardedOver sharded_over(const UnitPolicy& policy) {
  return policy.parameters == ShardedOver::none ? policy.optimizer : policy.parameters;
}

}  // namespace

ReshardAfterForward::ReshardAfterForward(std::string_view text) : value_(text == "true" ? 1 : 0), is_bool_(true) {
  if (text == "true" || text == "false") return;
  const std::optional<std::int64_t> count = parse_count(text);
  check(count && std::in_range<int>(*count),
        "reshard_after_forward must be true, false or a number of ranks, got \"{}\"", text);
  value_ = static_cast<int>(*count);
  is_bool_ = false;
}

std::string ReshardAfterForward::text() const {
  return is_bool_ ? (value_ != 0 ? "true" : "false") : std::to_string(value_);
}

bool ReshardAfterForward::resolve(int ranks) const {
  if (is_bool_) return value_ != 0;
  check(value_ >= 1 && value_ <= ranks && ranks % value_ == 0,
        "reshard_after_forward = {}: it must divide the {} ranks of the mesh and lie in 1..{}", value_, ranks, ranks);
  return value_ > 1;
}

int ReshardAfterForward::slices(int ranks) const { return resolve(ranks) && !is_bool_ && value_ < ranks ? value_ : 0; }

std::span<const std::string> strategy_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Preset& preset : presets()) list.emplace_back(preset.name);
    return list;
  }();
  return names;
}

UnitPolicy strategy(std::string_view name) {
  for (const Preset& preset : presets()) {
    if (preset.name != name) continue;
    UnitPolicy policy{
        .parameters = preset.parameters, .optimizer = preset.optimizer, .needs_replicas = preset.needs_replicas};
    if (preset.reshards) policy.reshard_after_forward = ReshardAfterForward(*preset.reshards);
    return policy;
  }
  fail("there is no strategy \"{}\"{}; there are {}", name, did_you_mean(name, strategy_names()),
       fmt::join(strategy_names(), ", "));
}

std::string_view strategy_name(const UnitPolicy& policy, bool has_replicas) {
  const bool reshards = !policy.reshard_after_forward || !policy.reshard_after_forward->is_off();
  const bool is_sharded = policy.parameters != ShardedOver::none;
  for (const Preset& preset : presets())
    if (preset.parameters == policy.parameters && preset.optimizer == policy.optimizer &&
        (!is_sharded || preset.needs_replicas == has_replicas) &&
        (!is_sharded || preset.reshards.value_or(true) == reshards))
      return preset.name;
  return "";
}

UnitPolicy on_data_axes(UnitPolicy policy) {
  if (!policy.data_axes) return policy;
  if (policy.data_axes->shard.empty()) {
    check(!policy.needs_replicas,
          "fully_shard: data_axes names no axis to shard over, and a hybrid strategy has replicas of shards; name one "
          "in .shard, or take the strategy \"no_shard\"");
    policy.parameters = policy.optimizer = policy.gradients = ShardedOver::none;
    policy.reshard_after_forward.reset();  // it speaks of ranks that shard
  }
  policy.data_axes.reset();
  return policy;
}

void join_for(const UnitPolicy& policy, const DeviceMesh& data) {
  if (data.ndim() < 2 || data.size(0) == 1 || data.size(1) == 1) return;
  const int both[] = {0, 1};
  const bool is_split = sharded_over(policy) == ShardedOver::shards && policy.replicate_below_bytes <= 0;
  if (!is_split && !data.joint_group(both)) data.flatten();
}

UnitPolicy on_axes_of(UnitPolicy policy, const DeviceMesh& mesh) {
  if (mesh.ndim() > 1) return policy;
  for (ShardedOver* over : {&policy.parameters, &policy.optimizer, &policy.gradients})
    *over = std::min(*over, ShardedOver::shards);
  return policy;
}

void check_policy(const UnitPolicy& told, const DeviceMesh& mesh) {
  const UnitPolicy policy = on_axes_of(told, mesh);
  check_policy(policy.mp_policy);
  check(policy.parameters <= policy.optimizer,
        "fully_shard: parameters are sharded over {}, the optimizer over {}; it is sharded over as much, or over more: "
        "none, shards, all",
        text(policy.parameters), text(policy.optimizer));
  check(policy.gradients <= policy.optimizer,
        "fully_shard: gradients accumulate sharded over {}, the optimizer is sharded over {}: it cannot be over less",
        text(policy.gradients), text(policy.optimizer));
  check(
      !policy.sums_in_tree || policy.gradients == ShardedOver::none,
      "fully_shard: gradients add up as a tree in full, and this policy adds up shards over {}; leave one of them out",
      text(policy.gradients));
  const bool has_replicas = mesh.ndim() > 1 && mesh.size(0) > 1 && sharded_over(policy) == ShardedOver::shards;
  const DType reduce = policy.mp_policy.reduce_dtype.value_or(DType::f32);
  check(
      !policy.sums_in_tree || !has_replicas || byte_size(reduce) >= byte_size(DType::f32),
      "fully_shard: gradients add up as a tree, and with reduce_dtype = {} what shards sum is rounded before replicas "
      "sum it over {}; take f32 for reduce_dtype, or a mesh of one axis",
      name(reduce), mesh.describe());
  check(!policy.offload || mesh.ndim() == 1 || policy.parameters != ShardedOver::shards ||
            policy.optimizer != ShardedOver::all,
        "fully_shard: where replicas divide the shards (hybrid_shard_state) a gather writes them, so they cannot be "
        "offloaded; offload the optimizer alone, or take hybrid_shard");
  check(!policy.needs_replicas || mesh.ndim() > 1,
        "fully_shard over {}: a hybrid strategy needs an axis that replicates before the one that shards, as "
        "{{replicate: 2, dp: 2}} (--mesh replicate=2,dp=2)",
        mesh.describe());
}

DataMesh data_mesh(const DeviceMesh& mesh, const UnitPolicy& policy) {
  return DataMesh(mesh, sharded_over(policy), policy.optimizer);
}

}  // namespace sherd::nn
