#include "tools/train/sharding.h"

#include <algorithm>
#include <array>
#include <utility>

#include "nn/parallel/extensions/int8_gather.h"
#include "nn/parallel/extensions/int8_reduce.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/parallel/shard/wrap/unit_rules.h"
#include "nn/recompute.h"
#include "runtime/memory/accounting.h"
#include "tools/train/device_flag.h"
#include "tools/train/offload_flag.h"

namespace sherd {

namespace {

constexpr std::array<std::string_view, 2> kTravels{"exact", "int8"};

bool has_replicas(const TrainConfig& config) {
  return std::ranges::any_of(parse_mesh(config.mesh, 1),
                             [](const DeviceMesh::Axis& axis) { return axis.name == "replicate"; });
}

/// `policy` is that of the strategy alone: what it says itself a number of ranks would contradict.
void check_reshard(const TrainConfig& config, const nn::UnitPolicy& policy) {
  const auto* const ranks = std::get_if<std::int64_t>(&config.reshard_after_forward);
  if (!ranks) return;
  check(*ranks >= 2 && std::in_range<int>(*ranks),
        "reshard_after_forward must be true, false or a number of ranks from 2, got {}", *ranks);
  check(config.fully_shard, "reshard_after_forward = {} is a setting of fully_shard; leave fully_shard on", *ranks);
  check(policy.parameters != nn::ShardedOver::none && !policy.reshard_after_forward,
        "reshard_after_forward = {} needs a strategy that reshards after forward, as full_shard and hybrid_shard do; "
        "strategy = {} keeps what was gathered",
        *ranks, config.strategy);
  check(config.gather == "exact",
        "gather = {} with reshard_after_forward = {}: what travels so is gathered among all ranks; leave one of them "
        "out",
        config.gather, *ranks);
}

void check_offload(const TrainConfig& config, const nn::UnitPolicy& policy) {
  if (!parse_offload(config.offload, config.offload_keep).parameters) return;
  check(config.fully_shard,
        "offload = {} is of the units of fully_shard; leave fully_shard on, or offload the optimizer", config.offload);
  check(policy.parameters != nn::ShardedOver::shards || policy.optimizer != nn::ShardedOver::all,
        "offload = {} with strategy = {}: where replicas divide the shards a gather writes them, so they cannot be "
        "offloaded; take hybrid_shard, or offload the optimizer",
        config.offload, config.strategy);
  check(config.gather == "exact",
        "offload = {} with gather = {}: what travels so is made of shards that are in memory; leave one of them out",
        config.offload, config.gather);
}

// Settings of shards are nobody's where every rank has all state.
void check_has_shards(const TrainConfig& config, const nn::UnitPolicy& policy) {
  if (policy.optimizer != nn::ShardedOver::none) return;
  for (const auto& [key, how] : {std::pair("gather", config.gather), std::pair("reduce", config.reduce)})
    check(how == "exact",
          "{} = {} with strategy = {}: nothing is gathered there, and gradients are averaged whole, in the type of the "
          "reduction; take shard_optimizer, or leave {} out",
          key, how, config.strategy, key);
  check(!config.accumulate_shards,
        "accumulate_shards with strategy = {}: every rank has whole gradients, so there are no shards to add up; take "
        "shard_optimizer, or leave it out",
        config.strategy);
}

// Where every rank has whole gradients anyway, waiting takes no more.
std::string accumulation_text(const TrainConfig& config, int data_ranks) {
  const nn::UnitPolicy policy = unit_policy(config);
  if (config.accumulate == 1 || data_ranks == 1 || policy.optimizer == nn::ShardedOver::none) return "";
  if (policy.gradients != nn::ShardedOver::none)
    return fmt::format(", shards of the gradients of {} micro-batches add up", config.accumulate);
  return fmt::format(", full gradients of {} micro-batches wait ({} bytes x parameters more per rank)",
                     config.accumulate, waiting_gradient_bytes(config));
}

}  // namespace

nn::UnitPolicy unit_policy(const TrainConfig& config) {
  nn::UnitPolicy policy = nn::strategy(config.strategy);
  if (const auto* const ranks = std::get_if<std::int64_t>(&config.reshard_after_forward))
    policy.reshard_after_forward = nn::ReshardAfterForward(static_cast<int>(*ranks));
  else if (!std::get<bool>(config.reshard_after_forward)) policy.reshard_after_forward = nn::ReshardAfterForward(false);
  policy.mp_policy = {.param_dtype = dtype_from_name(config.param_dtype),
                      .reduce_dtype = dtype_from_name(config.reduce_dtype)};
  policy.prefetch = config.prefetch;
  if (config.accumulate_shards) policy.gradients = nn::ShardedOver::shards;
  policy.offload = shard_offload(parse_offload(config.offload, config.offload_keep), parse_device(config.device),
                                 config.memory_limit);
  return policy;
}

void check_sharding(const TrainConfig& config) {
  const nn::UnitPolicy policy = nn::strategy(config.strategy);
  nn::units_by(config.units);  // throws if there is no such rule
  nn::recompute_policy(config.recompute);
  check(config.fully_shard || config.strategy == "full_shard",
        "strategy = {} is a setting of fully_shard; leave fully_shard on", config.strategy);
  for (const auto& [key, how] : {std::pair("gather", config.gather), std::pair("reduce", config.reduce)}) {
    check(std::ranges::find(kTravels, how) != kTravels.end(), "{} must be one of {}, got \"{}\"", key,
          fmt::join(kTravels, ", "), how);
    check(config.fully_shard || how == "exact", "{} = {} is a setting of fully_shard; leave fully_shard on", key, how);
  }
  check_has_shards(config, policy);
  check_reshard(config, policy);
  check_offload(config, policy);
}

bool lacks_replicas(const TrainConfig& config) {
  return config.fully_shard && nn::strategy(config.strategy).needs_replicas && !has_replicas(config);
}

std::int64_t waiting_gradient_bytes(const TrainConfig& config) {
  return std::max(byte_size(dtype_from_name(config.param_dtype)), byte_size(dtype_from_name(config.reduce_dtype)));
}

std::string sharding_text(const TrainConfig& config, int data_ranks) {
  std::string memory = config.recompute == "none" ? "" : fmt::format(", recompute {}", config.recompute);
  if (config.offload != "none") memory += fmt::format(", offload {}", config.offload);
  if (config.offload_keep > 0) memory += fmt::format(" but for {}", format_bytes(config.offload_keep));
  if (config.offload_activations != "none")
    memory += fmt::format(", offload activations of {}", config.offload_activations);
  if (!config.fully_shard) return "not sharded (fully_shard = false)" + memory;
  const nn::UnitPolicy policy = unit_policy(config);
  const std::string_view name = nn::strategy_name(policy, policy.needs_replicas || has_replicas(config));
  std::string text = fmt::format("strategy {}", name.empty() ? config.strategy : name);
  if (config.reshard_after_forward != SwitchOrNumber(true))
    text += std::visit([](auto value) { return fmt::format(" (reshard_after_forward = {})", value); },
                       config.reshard_after_forward);
  if (config.gather != "exact") text += fmt::format(", {} gathers", config.gather);
  if (config.reduce != "exact") text += fmt::format(", {} reductions", config.reduce);
  if (config.units != "block") text += fmt::format(", units {}", config.units);
  if (config.units == "coarse" && std::holds_alternative<std::int64_t>(config.reshard_after_forward))
    text += " (one, which does not reshard after forward)";
  return text + memory + accumulation_text(config, data_ranks);
}

void shard_model(nn::LanguageModel& model, const TrainConfig& config, const DeviceMesh& data) {
  if (!config.fully_shard) return;
  for (const nn::UnitHandle& unit : nn::shard_units(model, data, nn::units_by(config.units), unit_policy(config))) {
    if (config.gather == "int8") unit.set_gather_transform(nn::int8_gather());
    if (config.reduce == "int8") unit.set_custom_reduce(nn::int8_reduce());
  }
}

}  // namespace sherd
