#include "tools/bench/training.h"

namespace sherd::bench {

TrainConfig train_config(const BenchModel& model, const nn::TrainingPlan& plan, int ranks) {
  TrainConfig config;
  config.seed = 1;
  config.plan = plan;
  config.plan.fully_shard = plan.param_dtype != DType::f32 || plan.strategy != nn::TrainingPlan().strategy ||
                            nn::count_data_ranks(plan.mesh.over(ranks)) > 1;
  config.plan.tensor_parallel.sequence_parallel = true;
  config.model = model_section(model);
  config.optimizer = {.lr = 3e-4, .min_lr = 3e-4, .warmup = 0, .decay_matrices_only = false, .clip = 0};
  resolve(config);
  return config;
}

TrainStep train_step(const BenchModel& model, const nn::TrainingPlan& plan, const std::shared_ptr<ProcessGroup>& group,
                     const Links& link) {
  const TrainConfig config = train_config(model, plan, group->size());
  const nn::JobMesh mesh(config.plan.mesh, group);
  link.shape(mesh);
  return TrainStep(config, mesh, model.vocabulary, {.metrics = false});
}

}  // namespace sherd::bench
