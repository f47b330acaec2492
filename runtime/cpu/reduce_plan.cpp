#include "runtime/cpu/reduce_plan.h"

namespace sherd::cpu {

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
  return plan;
}

}  // namespace sherd::cpu
