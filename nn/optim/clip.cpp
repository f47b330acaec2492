#include "nn/optim/clip.h"

#include <cmath>

#include "dtensor/spec.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/ops.h"

namespace sherd::nn {

namespace {

// Gradients that live on the same mesh axis share one all-reduce; plain ones (equal on all ranks) need none.
struct NormPart {
  ProcessGroup* group;  // null: plain
  std::vector<Tensor> grads;
};

std::vector<NormPart> split_by_group(const std::vector<Parameter*>& parameters) {
  std::vector<NormPart> parts;
  for (const Parameter* p : parameters) {
    if (!p->grad().defined()) continue;
    ProcessGroup* group = nullptr;
    if (p->grad().is_distributed()) {
      const Spec& spec = Spec::from(p->grad());
      if (spec.placements()[0].is_shard() && spec.mesh().size() > 1) group = &spec.mesh().group();
    }
    auto part = std::find_if(parts.begin(), parts.end(), [&](const NormPart& n) { return n.group == group; });
    if (part == parts.end()) part = parts.insert(parts.end(), NormPart{group, {}});
    part->grads.push_back(p->grad());
  }
  return parts;
}

}  // namespace

Tensor grad_norm(const std::vector<Parameter*>& parameters, double p) {
  GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  const bool is_max = std::isinf(p);
  Tensor total;
  for (const NormPart& part : split_by_group(parameters)) {
    Tensor sum = power_sum(part.grads, p);
    if (part.group) sum = all_reduce(std::move(sum), *part.group, is_max ? ReduceKind::max : ReduceKind::sum);
    if (!total.defined()) total = std::move(sum);
    else total = is_max ? maximum(std::move(total), std::move(sum)) : add(std::move(total), std::move(sum));
  }
  if (!total.defined()) return zeros({});
  if (p == 2) total = sqrt(std::move(total));
  else if (!is_max && p != 1) total = pow(std::move(total), 1 / p);
  return cast(std::move(total), DType::f32);
}

Tensor clip_grad_norm(Optimizer& optimizer, double max_norm, double p) {
  check(max_norm > 0, "clip_grad_norm: max_norm must be above 0, got {}", max_norm);
  GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  Tensor norm = grad_norm(optimizer.parameters(), p);
  optimizer.set_gradient_scale(clamp(mul(reciprocal(add(norm, 1e-6)), max_norm), 0, 1));
  return norm;
}

}  // namespace sherd::nn
