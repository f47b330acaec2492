#include "nn/plan/training_plan.h"

#include <algorithm>
#include <vector>

#include "runtime/op/attrs/attrs.h"

namespace sherd::nn {

using P = TrainingPlan;
const AttrField TrainingPlan::fields[23] = {attr<&P::mesh>("mesh").optional(),
                                            attr<&P::device>("device").optional(),
                                            attr<&P::tensor_parallel>(),
                                            attr<&P::fully_shard>("fully_shard").optional(),
                                            attr<&P::strategy>("strategy").optional(),
                                            attr<&P::units>("units").optional(),
                                            attr<&P::reshard_after_forward>("reshard_after_forward").optional(),
                                            attr<&P::prefetch>("prefetch").optional(),
                                            attr<&P::accumulate_shards>("accumulate_shards").optional(),
                                            attr<&P::param_dtype>("param_dtype").optional(),
                                            attr<&P::reduce_dtype>("reduce_dtype").optional(),
                                            attr<&P::gather>("gather").optional(),
                                            attr<&P::reduce>("reduce").optional(),
                                            attr<&P::loss_scale>("loss_scale").optional(),
                                            attr<&P::recompute>("recompute").optional(),
                                            attr<&P::offload>("offload").optional(),
                                            attr<&P::offload_keep>("offload_keep").optional(),
                                            attr<&P::offload_activations>("offload_activations").optional(),
                                            attr<&P::micro_batches>("micro_batches").optional(),
                                            attr<&P::numerics>("numerics").optional(),
                                            attr<&P::leaves>("leaves").optional(),
                                            attr<&P::compiled>("compiled").optional(),
                                            attr<&P::memory_budget>("memory_budget").optional()};

namespace {

std::string text_of(const AttrField& field, const void* object) {
  AttrWriter out(false);
  field.print(object, out);
  return out.take();
}

void add_differences(const AttrKind& kind, const void* before, const void* now, std::vector<std::string>& texts) {
  for (const AttrField& field : kind.fields) {
    if (field.group) add_differences(*field.group, field.at(before), field.at(now), texts);
    else if (!field.equal(before, now))
      texts.push_back(fmt::format("{} {} -> {}", field.name, text_of(field, before), text_of(field, now)));
  }
}

}  // namespace

std::string print(const TrainingPlan& plan) { return AttrsView(plan).print(); }

TrainingPlan parse_plan(std::string_view text) {
  TrainingPlan plan;
  AttrReader reader(text);
  reader.fields(attr_kind<TrainingPlan>, &plan);
  check(reader.is_at_end(), "plan: there is a brace that none opens: {}", text);
  return plan;
}

std::uint64_t hash_of(const TrainingPlan& plan) { return hash_attrs(attr_kind<TrainingPlan>, &plan); }

bool operator==(const TrainingPlan& a, const TrainingPlan& b) { return equal_attrs(attr_kind<TrainingPlan>, &a, &b); }

std::string differences(const TrainingPlan& before, const TrainingPlan& now) {
  std::vector<std::string> texts;
  add_differences(attr_kind<TrainingPlan>, &before, &now, texts);
  return fmt::format("{}", fmt::join(texts, ", "));
}

bool has_f16(const TrainingPlan& plan) { return plan.param_dtype == DType::f16 || plan.reduce_dtype == DType::f16; }

std::int64_t waiting_gradient_bytes(const TrainingPlan& plan) {
  return std::max(byte_size(plan.param_dtype), byte_size(plan.reduce_dtype));
}

bool lacks_replicas(const TrainingPlan& plan) {
  return plan.fully_shard && plan.strategy.value().needs_replicas && !plan.mesh.has("replicate");
}

}  // namespace sherd::nn
