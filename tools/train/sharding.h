#pragma once
// How a training run shards its model over the ranks with data of their own: `--strategy`, `--units`, and the flags
// that stand for a strategy.
#include <string>

#include "nn/models/language_model.h"
#include "nn/parallel/shard/unit/policy.h"
#include "tools/train/config.h"
#include "tools/train/job_mesh.h"

namespace sherd {

/// What fully_shard is told. Error naming the nearest for an unknown strategy.
nn::UnitPolicy unit_policy(const TrainConfig& config);
/// Throws Error for an unknown strategy, rule of units or way to recompute, and for keys that contradict each other: a
/// number of ranks in reshard_after_forward, or what is said of shards where there are none.
void check_sharding(const TrainConfig& config);
/// Whether the strategy copies its shards and the mesh names no axis for that: then hosts do (mesh_with_replicas()).
bool lacks_replicas(const TrainConfig& config);
/// The strategy that flags and mesh come to, and from what: "strategy shard_grad_op (reshard_after_forward = false)",
/// and what is recomputed; of several micro-batches also what their gradients take until the last one, where
/// `data_ranks` share them.
std::string sharding_text(const TrainConfig& config, int data_ranks);
/// Bytes of an element of the gradients that wait for the last micro-batch: they add up in the type of the reduction,
/// where that is the wider one.
std::int64_t waiting_gradient_bytes(const TrainConfig& config);
/// Makes the units of config.units, a rule by name (nn/parallel/shard/wrap/unit_rules.h), the model's last. No-op if
/// config.fully_shard is off. Collective where reshard_after_forward is a number of ranks, whose groups it makes; else
/// no communication.
void shard_model(nn::LanguageModel& model, const TrainConfig& config, const DeviceMesh& data);

}  // namespace sherd
