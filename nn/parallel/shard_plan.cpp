#include "nn/parallel/shard_plan.h"

#include <algorithm>
#include <numeric>

#include "runtime/tensor/fnv1a.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

// Bytes of the global tensor, the same on all ranks.
std::int64_t bytes_of(const Parameter& p) { return p.numel() * byte_size(p.value().dtype()); }

// FNV-1a. Names that differ in their last digit differ in the low bits.
void assign_owners(std::vector<ShardPlan>& plans, std::string_view unit, std::span<Parameter* const> parameters,
                   std::size_t num_shards) {
  std::vector<std::int64_t> owned(num_shards);
  std::vector<std::size_t> waiting;
  for (const std::size_t i : indices(plans)) {
    const int owner = plans[i].owner;
    if (owner == ShardPlan::kBalanced) waiting.push_back(i);
    else if (owner >= 0 && std::cmp_less(owner, num_shards))
      owned[static_cast<std::size_t>(owner)] += bytes_of(*parameters[i]);
  }
  std::ranges::stable_sort(waiting, std::greater(), [&](std::size_t i) { return bytes_of(*parameters[i]); });
  const std::size_t first = fnv1a(unit) % num_shards;
  for (const std::size_t i : waiting) {
    std::size_t best = first;
    for (const std::size_t k : Numbers<std::size_t>(1, num_shards)) {
      const std::size_t shard = (first + k) % num_shards;
      if (owned[shard] < owned[best]) best = shard;
    }
    owned[best] += bytes_of(*parameters[i]);
    plans[i].owner = static_cast<int>(best);
  }
}

}  // namespace

std::vector<ShardPlan> plan_shards(std::string_view unit, std::span<Parameter* const> parameters,
                                   const ShardPlanner& planner, int num_shards) {
  std::vector<ShardPlan> plans(parameters.size());
  if (!planner) return plans;
  std::ranges::transform(parameters, plans.begin(), [&](const Parameter* p) { return planner(*p); });
  assign_owners(plans, unit, parameters, static_cast<std::size_t>(num_shards));
  return plans;
}

}  // namespace sherd::nn
