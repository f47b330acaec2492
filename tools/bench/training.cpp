#include "tools/bench/training.h"

#include <fmt/format.h>

#include "tools/train/device_flag.h"

namespace sherd::bench {

TrainConfig train_config(const BenchModel& model, const TrainingOptions& options, int ranks) {
  TrainConfig config;
  config.seed = 1;
  config.device = options.device;
  config.compile = options.captured;
  config.prefetch = options.prefetch;
  config.param_dtype = options.dtype;
  config.strategy = options.strategy;
  config.fully_shard = options.dtype != "f32" || options.strategy != TrainingOptions().strategy ||
                       (ranks > 1 && !options.tensor_parallel);
  config.mesh = options.tensor_parallel ? fmt::format("tp={}", ranks) : options.mesh;
  config.link = options.link;
  config.recompute = options.recompute;
  config.parallel.sequence = true;
  config.model = model_section(model);
  config.optimizer = {.lr = 3e-4, .min_lr = 3e-4, .warmup = 0, .decay_matrices_only = false, .clip = 0};
  resolve(config);
  return config;
}

TrainStep train_step(const BenchModel& model, const TrainingOptions& options,
                     const std::shared_ptr<ProcessGroup>& group) {
  const TrainConfig config = train_config(model, options, group->size());
  return TrainStep(config, JobMesh(config.mesh, group, config.link), parse_device(config.device), model.vocabulary,
                   {.metrics = false});
}

}  // namespace sherd::bench
