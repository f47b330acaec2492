#include "nn/plan/apply.h"

#include <optional>
#include <utility>
#include <vector>

#include "nn/batch_part.h"
#include "nn/offload_activations.h"
#include "nn/parallel/extensions/int8_gather.h"
#include "nn/parallel/extensions/int8_reduce.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/plan/leaf_pass.h"
#include "nn/recompute.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/leaves.h"
#include "runtime/comm/group/sum_order.h"
#include "runtime/op/rows/ops.h"

namespace sherd::nn {

namespace {
// Backward runs so often in a step; where ranks have unlike numbers of leaves, none has more.
std::int64_t count_passes(const TrainingPlan& plan, std::int64_t data_ranks) {
  return plan.numerics.layout_free() ? (plan.leaves + data_ranks - 1) / data_ranks : plan.micro_batches;
}
}  // namespace

UnitPolicy unit_policy(const TrainingPlan& plan, const PlanFacts& facts) {
  UnitPolicy policy = plan.strategy.value();
  if (plan.reshard_after_forward != ReshardAfterForward(true))
    policy.reshard_after_forward = plan.reshard_after_forward;
  policy.mp_policy = {.param_dtype = plan.param_dtype, .reduce_dtype = plan.reduce_dtype};
  policy.prefetch = plan.prefetch;
  if (plan.accumulate_shards) policy.gradients = ShardedOver::shards;
  policy.sums_in_tree = plan.numerics.layout_free();
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
  if (plan.fully_shard) {
    UnitPolicy policy = unit_policy(plan, facts);
    policy.passes_that_wait = static_cast<int>(count_passes(plan, mesh.num_data_ranks())) - 1;
    applied.units = shard_units(model, mesh.data(), plan.units.value(), policy);
  }
  for (const UnitHandle& unit : applied.units) {
    if (!plan.gather.is_exact()) unit.set_gather_transform(int8_gather());
    if (!plan.reduce.is_exact()) unit.set_custom_reduce(int8_reduce());
    // Leaves have whole losses: what is scaled before it is summed would be rounded otherwise where it is tiny.
    if (plan.numerics.layout_free()) unit.set_gradient_divide_factor(static_cast<double>(plan.leaves));
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

namespace {

struct Leaves {
  std::int64_t first = 0, count = 1;
};

// This rank's, of those of the batch.
Leaves leaves_of(const TrainingPlan& plan, const Module& model, std::span<const Tensor> batch) {
  for (const Tensor& t : batch)
    check(!t.is_distributed(),
          "forward_backward: with numerics = layout_free a rank has rows of its own, and the batch is {}; give its "
          "local() rows",
          t);
  const BatchPart own = batch_part(model, batch[0]);
  const std::int64_t first = plan.leaves * own.first, count = plan.leaves * own.rows;
  check(count > 0 && first % own.all == 0 && count % own.all == 0,
        "forward_backward: {} leaves are no whole ones on a rank with rows {} to {} of {}", plan.leaves, own.first,
        own.first + own.rows, own.all);
  return {first / own.all, count / own.all};
}

// The loss is the sum of the leaves' own, so each has the gradients that it has alone. Rows draw as each alone too.
Tensor in_one_pass(const Leaves& leaves, std::int64_t all, std::span<const Tensor> batch,
                   const std::function<Tensor(std::span<const Tensor> part)>& loss, const ForwardBackward& options) {
  const LeavesScope scope(leaves.count);
  const BatchPartScope rows({leaves.first, leaves.count, all}, 0);
  if (options.before_last) options.before_last();
  const Tensor sum = loss(batch);
  backward(sum);
  return mul(sum.local().detach(), 1.0 / static_cast<double>(leaves.count));  // every rank of the tp axis has it
}

Tensor sum_in_turn(std::span<const Tensor> terms) {
  Tensor sum = terms[0];
  for (const Tensor& term : terms.subspan(1)) sum = add(std::move(sum), term);
  return sum;
}

}  // namespace

Tensor forward_backward(const TrainingPlan& plan, Module& model, std::span<const Tensor> batch,
                        const std::function<Tensor(std::span<const Tensor> part)>& loss,
                        const ForwardBackward& options) {
  check(!batch.empty(), "forward_backward: the batch has no tensor, so nothing says how many rows it has");
  const bool by_leaf = plan.numerics.layout_free();
  const Leaves leaves = by_leaf ? leaves_of(plan, model, batch) : Leaves{0, plan.micro_batches};
  const std::int64_t parts = leaves.count;
  const std::int64_t rows = batch[0].size(0), micro = rows / parts;
  check(rows == micro * parts, "a batch of {} rows does not divide into {} micro-batches; make it a multiple of {}",
        rows, parts, parts);
  if (by_leaf && options.leaves_share_pass && parts > 1 && batch[0].numel() / parts >= kFewestPositions) {
    units(model).set_requires_gradient_sync(true);
    return in_one_pass(leaves, plan.leaves, batch, loss, options);
  }
  const double share = 1.0 / static_cast<double>(parts);
  std::vector<Tensor> part(batch.begin(), batch.end()), losses;
  for (std::int64_t m = 0; m < parts; ++m) {
    const bool whole = parts == 1, is_last = m == parts - 1;
    for (std::size_t i = 0; !whole && i < part.size(); ++i) part[i] = narrow(batch[i], 0, m * micro, micro);
    std::optional<BatchPartScope> leaf;
    if (by_leaf) leaf.emplace(BatchPart{leaves.first + m, 1, plan.leaves}, m);
    else if (!whole) leaf.emplace(MicroBatch{m, parts, !plan.accumulate_shards});
    if (is_last && options.before_last) options.before_last();
    Tensor value = loss(part);
    if (!whole && !by_leaf) value = mul(value, share);
    if (!whole && plan.fully_shard) units(model).set_requires_gradient_sync(is_last);
    backward(options.scaler ? options.scaler->scale(value) : value);
    losses.push_back(value.local().detach());  // every rank of the tp axis has the whole of it
  }
  if (!by_leaf) return sum_in_turn(losses);
  return mul(sum_in_tree(std::span<const Tensor>(losses), [](const Tensor& a, const Tensor& b) { return add(a, b); }),
             share);
}

}  // namespace sherd::nn
