#include <sherd/parallel.h>

using namespace sherd;

int main() {
  const nn::Gpt::Config config{.vocabulary = 7, .tokens = 4, .layers = 1, .heads = 1, .width = 4};
  const nn::TrainingPlan plan{.strategy = "shard_grad_op", .recompute = "full", .micro_batches = 2};
  nn::Gpt model(config);
  const nn::AppliedPlan applied = nn::apply(plan, {.ranks = 1, .batch = 4}, model, nn::JobMesh(plan.mesh, world_group()));
  model.materialize(nn::Seed{1});
  fmt::print("{}\n{}", print(plan), nn::print_units(model));
  return applied.local_batch == 4 && applied.units.size() == 2 && nn::parse_plan(print(plan)) == plan ? 0 : 1;
}
