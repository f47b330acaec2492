#pragma once
// How a training is spread over its ranks, as one value: mesh, what is sharded, recomputed and offloaded, and in which
// dtypes. What it trains (model, data, optimizer) and where (ranks, batch, memory: facts, check.h) are not in it.
//
//   TrainingPlan plan{.mesh = "dp=2,tp=2", .strategy = "full_shard", .recompute = "full"};
//   print(plan)         mesh="dp=2,tp=2" recompute=full        fields that are at their defaults are left out
//   parse_plan(text)    the same value
#include <cstdint>
#include <string>
#include <string_view>

#include "nn/models/plan_options.h"
#include "nn/plan/choices.h"
#include "nn/plan/mesh_axes.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/dtype.h"

namespace sherd::nn {

struct TrainingPlan {
  MeshAxes mesh{};
  Device device{};
  TensorParallelOptions tensor_parallel{};  ///< where the mesh has tp
  bool fully_shard = true;                  ///< false: one rank with data, not sharded
  Strategy strategy = "full_shard";
  UnitsBy units = "block";
  /// As UnitPolicy's, where the strategy does not say it itself: true is its default.
  ReshardAfterForward reshard_after_forward = true;
  bool prefetch = true;            ///< UnitPolicy::prefetch
  bool accumulate_shards = false;  ///< every micro-batch reduces its gradients, and shards add up
  DType param_dtype = DType::f32;  ///< MixedPrecision::param_dtype
  DType reduce_dtype = DType::f32;
  Travel gather = "exact";
  Travel reduce = "exact";
  LossScale loss_scale = "auto";
  RecomputeBy recompute = "none";  ///< of the model's blocks
  Offload offload = "none";
  std::int64_t offload_keep = 0;  ///< bytes of what is offloaded that stay in memory of a rank
  OffloadActivations offload_activations = "none";
  std::int64_t micro_batches = 1;  ///< of a step, whose gradients are summed; of layout_free: see leaves
  Numerics numerics = "default";
  /// With layout_free, equal parts of a batch, a power of two, in the order in which their gradients are summed as a
  /// balanced tree. Each rank with data of its own has as many, its micro-batches (on_ranks()).
  std::int64_t leaves = 8;
  bool compiled = false;                ///< updates and evaluations are captured and replayed
  MemoryBudget memory_budget = "none";  ///< of captured updates

  static const AttrField fields[23];
};

/// "mesh=dp=2,tp=2 recompute=full": the fields that differ from those of TrainingPlan{}.
std::string print(const TrainingPlan& plan);
/// Error naming the field, its value and the nearest name, for an unknown field, one that stands there twice, and a
/// value that it does not take. Not checked for what contradicts each other (check.h).
TrainingPlan parse_plan(std::string_view text);
std::uint64_t hash_of(const TrainingPlan& plan);
bool operator==(const TrainingPlan& a, const TrainingPlan& b);
/// "strategy full_shard -> no_shard, compiled false -> true"; empty if they are equal.
std::string differences(const TrainingPlan& before, const TrainingPlan& now);

/// Whether a dtype of the plan is f16, whose gradients underflow without a scaled loss.
bool has_f16(const TrainingPlan& plan);
/// Bytes of an element of the gradients that wait for the last micro-batch: they add up in the dtype of the reduction,
/// where that is the wider one.
std::int64_t waiting_gradient_bytes(const TrainingPlan& plan);
/// Whether the strategy copies its shards and the mesh names no axis for that: then hosts do.
bool lacks_replicas(const TrainingPlan& plan);

}  // namespace sherd::nn
