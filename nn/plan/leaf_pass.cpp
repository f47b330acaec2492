#include "nn/plan/leaf_pass.h"

#include <algorithm>

namespace sherd::nn {

std::string why_micro_batches(const TrainingPlan& plan, const LanguageModel& model, std::int64_t positions) {
  if (plan.device.has_backend())
    return fmt::format("products of {} sum in an order for each number of rows", to_string(plan.device));
  if (plan.param_dtype == DType::f16) return "products in f16 are not summed leaf by leaf";
  for (const Parameter* p : model.parameters())
    if (const DType dtype = p->sharded_value().dtype(); dtype != DType::f32)
      return fmt::format("\"{}\" is {}", p->name(), name(dtype));
  if (positions < kFewestPositions)
    return fmt::format("one has {} positions, and products of fewer than {} sum in another order", positions,
                       kFewestPositions);
  return model.why_leaves_apart();
}

}  // namespace sherd::nn
