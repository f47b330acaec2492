#pragma once
// Which part of a parameter each rank has, where it is not an even share of dim 0:
//
//   shard_dim(1)           f32[8,6]{1: dp}         3 columns on each of two ranks; 7 columns: 4 and 3
//   shard_rows({1,7})      f32[8,6]{0: dp(1,7)}    row intervals
//   owned_by(1)            f32[8,6]{0: dp(0,8)}    a whole matrix on one rank, as optimizers that look at all of it
//   owned()                                        want (Muon, Shampoo); the rank with the fewest bytes of the unit
//   shard_merged(2)        f32[48]{0: dp}          dims 0 and 1 as one: cuts go through rows, and of expert weights
//                                                  [experts, out, in] through experts, so that no rank is left without
//
// A fully_shard() call asks its policy's `placement` for the plan of each parameter.
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "nn/module.h"

namespace sherd::nn {

/// How the gathered local tensor of this rank is sharded; shards are numbered as the ranks of the axis that shards. The
/// same on all ranks.
struct ShardPlan {
  static constexpr int kNobody = -1, kBalanced = -2;
  int dim = 0;                       ///< that is sharded; negative: counted from the end
  std::vector<std::int64_t> rows{};  ///< of it, per shard; empty: equal shares, the last ones smaller
  int owner = kNobody;               ///< the shard that has all of it, or kBalanced
  /// Leading dims that are one while it is sharded: shards, gradients and state are of a tensor of fewer dims. `dim` is
  /// 0 and `rows` count its rows. Saves hold the tensor as it is. Not of parameters that tensor parallelism has split.
  int merged = 1;
};

inline ShardPlan shard_dim(int dim) { return {.dim = dim}; }
inline ShardPlan shard_rows(std::vector<std::int64_t> rows, int dim = 0) {
  return {.dim = dim, .rows = std::move(rows)};
}
inline ShardPlan owned_by(int shard) { return {.owner = shard}; }
inline ShardPlan shard_merged(int dims) { return {.merged = dims}; }
inline ShardPlan owned() { return {.owner = ShardPlan::kBalanced}; }

/// The plan of a parameter. The same on all ranks.
using ShardPlanner = std::function<ShardPlan(const Parameter&)>;

/// The plans of a unit's parameters; without a planner shares of dim 0. Those that are kBalanced get an owner: the
/// largest first, each the shard that owns the fewest bytes of them. Which one is the first of equals depends on the
/// unit's name, so that of many units with a matrix each not all are one rank's.
std::vector<ShardPlan> plan_shards(std::string_view unit, std::span<Parameter* const> parameters,
                                   const ShardPlanner& planner, int num_shards);

}  // namespace sherd::nn
