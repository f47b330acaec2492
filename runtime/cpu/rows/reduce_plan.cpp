#include "runtime/cpu/rows/reduce_plan.h"

#include <algorithm>

#include "runtime/cpu/parallel.h"
#include "runtime/cpu/scratch.h"
#include "runtime/cpu/tile.h"
#include "runtime/op/rows/reduce_attrs.h"

namespace sherd::cpu {

namespace {
constexpr std::int64_t kUnsplitUnits = 64;
}

ReducePlan plan_reduction(const Shape& shape, const Strides& strides, std::uint64_t mask, bool rows_only) {
  const auto is_reduced = [mask](int d) { return ((mask >> d) & 1u) != 0; };
  int last_kept = -1, last_reduced = -1;
  for (int d = 0; d < shape.size(); ++d)
    if (shape[d] != 1) (is_reduced(d) ? last_reduced : last_kept) = d;
  const bool columns = !rows_only && last_kept >= 0 && last_reduced >= 0 && strides[last_kept] < strides[last_reduced];
  // Inner: the kept dims behind all reduced ones; if the fast kept dim lies before them, from it on.
  const int first_inner = !columns ? shape.size() : last_kept > last_reduced ? last_reduced + 1 : last_kept;

  ReducePlan plan;
  const auto take = [&](int d, std::int64_t& group) {
    plan.shape.push_back(shape[d]);
    plan.strides.push_back(strides[d]);
    group *= shape[d];
  };
  for (int d = 0; d < first_inner; ++d)
    if (!is_reduced(d)) take(d, plan.outer);
  for (int d = 0; d < shape.size(); ++d)
    if (is_reduced(d)) take(d, plan.count);
  for (int d = first_inner; d < shape.size(); ++d)
    if (!is_reduced(d)) take(d, plan.inner);
  plan.width = std::max<std::int64_t>(std::min(plan.inner, kTile), 1);
  plan.tiles = num_chunks(plan.inner, plan.width);
  // With enough independent results no split is needed.
  const bool split = plan.outer * plan.tiles < kUnsplitUnits;
  plan.rows_per_split = std::max<std::int64_t>(split ? kReduceGrain / plan.width : plan.count, 1);
  plan.splits = std::max<std::int64_t>(num_chunks(plan.count, plan.rows_per_split), 1);
  return plan;
}

std::uint64_t sum_to_mask(const Shape& from, const Shape& to) {
  const int lead = from.size() - to.size();
  std::uint64_t mask = 0;
  for (int d = 0; d < from.size(); ++d)
    if (d < lead || to[d - lead] == 1) mask |= std::uint64_t{1} << d;
  return mask;
}

std::int64_t reduce_scratch(const InferCall& call) {
  const TensorMeta& x = call.in[0];
  return plan_reduction(x.shape, x.steps(), call.attrs.as<ReduceAttrs>().dims).partial_bytes();
}

std::int64_t sum_to_scratch(const InferCall& call) {
  const TensorMeta& x = call.in[0];
  const std::uint64_t mask = sum_to_mask(x.shape, call.attrs.as<SumToAttrs>().shape);
  return plan_reduction(x.shape, x.steps(), mask).partial_bytes();
}

}  // namespace sherd::cpu
