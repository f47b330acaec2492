#include "nn/plan/apply.h"

#include "nn/offload_activations.h"
#include "nn/parallel/extensions/int8_gather.h"
#include "nn/parallel/extensions/int8_reduce.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/recompute.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/ops.h"

namespace sherd::nn {

UnitPolicy unit_policy(const TrainingPlan& plan, const PlanFacts& facts) {
  UnitPolicy policy = plan.strategy.value();
  if (plan.reshard_after_forward != ReshardAfterForward(true))
    policy.reshard_after_forward = plan.reshard_after_forward;
  policy.mp_policy = {.param_dtype = plan.param_dtype, .reduce_dtype = plan.reduce_dtype};
  policy.prefetch = plan.prefetch;
  if (plan.accumulate_shards) policy.gradients = ShardedOver::shards;
  policy.offload = plan.offload.shards(plan.offload_keep, plan.device, facts.memory_limit);
  return policy;
}

AppliedPlan apply(const TrainingPlan& plan, const PlanFacts& facts, Module& model, const JobMesh& mesh,
                  const Plan& styles) {
  check_plan(plan, facts);
  check(mesh.root().axes() == plan.mesh.of(facts.ranks),
        "apply: the plan's mesh is \"{}\", and the model is to lie on {}", plan.mesh.text(), mesh.root().describe());
  check(!is_fully_sharded(model), "apply: the model is sharded already; apply a plan to a model once, as it was made");
  if (mesh.tensor()) parallelize(model, *mesh.tensor(), styles);
  if (plan.recompute != "none") recompute_blocks(model, plan.recompute.value());
  AppliedPlan applied;
  if (plan.fully_shard) applied.units = shard_units(model, mesh.data(), plan.units.value(), unit_policy(plan, facts));
  for (const UnitHandle& unit : applied.units) {
    if (!plan.gather.is_exact()) unit.set_gather_transform(int8_gather());
    if (!plan.reduce.is_exact()) unit.set_custom_reduce(int8_reduce());
  }
  if (facts.batch > 0) applied.local_batch = local_batch(plan, facts.batch, mesh.num_data_ranks());
  return applied;
}

void apply_offload(const TrainingPlan& plan, const PlanFacts& facts, Module& model, Optimizer& optimizer) {
  if (plan.offload.optimizer())
    optimizer.offload(plan.offload.state_options(plan.offload_keep, plan.device, facts.memory_limit));
  if (plan.offload_activations.any())
    offload_activations(model, plan.offload_activations.options(plan.device, facts.memory_limit));
}

Tensor forward_backward(const TrainingPlan& plan, Module& model, std::span<const Tensor> batch,
                        const std::function<Tensor(std::span<const Tensor> part)>& loss,
                        const ForwardBackward& options) {
  check(!batch.empty(), "forward_backward: the batch has no tensor, so nothing says how many rows it has");
  const std::int64_t parts = plan.micro_batches, rows = batch[0].size(0), micro = rows / parts;
  check(rows == micro * parts, "a batch of {} rows does not divide into {} micro-batches; make it a multiple of {}",
        rows, parts, parts);
  std::vector<Tensor> part(batch.begin(), batch.end());
  Tensor mean_loss;
  for (std::int64_t m = 0; m < parts; ++m) {
    const bool whole = parts == 1, is_last = m == parts - 1;
    for (std::size_t i = 0; !whole && i < part.size(); ++i) part[i] = narrow(batch[i], 0, m * micro, micro);
    if (is_last && options.before_last) options.before_last();
    Tensor value = loss(part);
    if (!whole) value = mul(value, 1.0 / static_cast<double>(parts));
    if (!whole && plan.fully_shard) units(model).set_requires_gradient_sync(is_last);
    backward(options.scaler ? options.scaler->scale(value) : value);
    value = value.local().detach();  // every rank of the tp axis has the whole of it
    mean_loss = mean_loss.defined() ? add(mean_loss, value) : value;
  }
  return mean_loss;
}

}  // namespace sherd::nn
