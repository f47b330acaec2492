#include "nn/parallel/shard/wrap/unit_handle.h"
#include "nn/parallel/shard/wrap/wrap.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

std::vector<Units::PendingGradient> Units::pending_gradients() const {
  check(!in_backward(), "pending_gradients: a backward pass is running; look between passes");
  std::vector<PendingGradient> pending;
  for (const UnitHandle& handle : units_)
    for (const auto& unit : handle.wrap().units)
      for (const std::size_t i : indices(unit->pieces)) {
        const HeldGradients* const held = unit->arrival().held();
        PendingGradient gradient{.parameter = unit->pieces.parameter(i), .shard = unit->arrival()[i].unsummed()};
        if (!gradient.parameter) continue;  // it was destroyed, and what the unit holds for it is nobody's
        if (held) gradient.kind = held->kind(i).value_or(ReduceKind::avg);
        const std::vector<Tensor> sums = held ? held->gradients(i) : std::vector<Tensor>();
        if (sums.empty() && gradient.shard.defined()) pending.push_back(gradient);
        for (const Tensor& sum : sums) {
          gradient.full = unit->pieces.as_gathered(i, unit->pieces.as_used(i, sum));
          pending.push_back(gradient);
          gradient.shard = {};
        }
      }
  return pending;
}

}  // namespace sherd::nn
