#pragma once
// A training on one rank by the rows that took part in each step of another run: what a run that lost replicas and took
// them back must have computed.
#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "nn/data/token_data.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/exec/context.h"
#include "tools/train/train_step.h"

namespace sherd::testing {

using namespace train;

struct StepOfRun {
  std::int64_t step = 0;
  double loss = 0;
  std::vector<int> replicas;  ///< that took part
};

/// Steps of a metrics file, whose lines are to be those of steps 1, 2, 3, ... in order.
inline std::vector<StepOfRun> steps_of_run(const std::string& metrics, int num_replicas) {
  std::vector<StepOfRun> steps;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const auto item = nlohmann::json::parse(line);
    if (!item.contains("step")) continue;
    StepOfRun step{item["step"], item["loss"], {}};
    if (item.contains("replicas")) step.replicas = item["replicas"].get<std::vector<int>>();
    else
      for (int replica = 0; replica < num_replicas; ++replica) step.replicas.push_back(replica);
    check(step.step == static_cast<std::int64_t>(steps.size()) + 1, "\"{}\" has step {} after {} steps", metrics,
          step.step, steps.size());
    steps.push_back(step);
  }
  return steps;
}

/// Tokens and targets of a step, i32 [rows, T]: those of the replicas, each of which has `data_ranks` / `num_replicas`
/// ranks with data of their own. One micro-batch.
inline std::pair<Tensor, Tensor> rows_of(const TokenData& data, const TrainConfig& config, const StepOfRun& step,
                                         int data_ranks, int num_replicas) {
  const std::int64_t sequence = config.model.sequence, local = config.batch / data_ranks;
  const int per_replica = data_ranks / num_replicas;
  std::vector<std::int32_t> tokens, targets, window(static_cast<std::size_t>(sequence + 1));
  for (const int replica : step.replicas)
    for (std::int64_t row = 0; row < per_replica * local; ++row) {
      data.training_window(static_cast<std::uint64_t>(config.seed), step.step - 1, replica * per_replica * local + row,
                           window);
      tokens.insert(tokens.end(), window.begin(), window.end() - 1);
      targets.insert(targets.end(), window.begin() + 1, window.end());
    }
  const Shape shape{static_cast<std::int64_t>(tokens.size()) / sequence, sequence};
  return {Tensor::from<std::int32_t>(tokens, shape), Tensor::from<std::int32_t>(targets, shape)};
}

/// The largest difference of losses, as a share of the loss.
inline double difference_from_one_rank(TrainConfig config, const std::vector<StepOfRun>& steps, int data_ranks,
                                       int num_replicas) {
  check(config.plan.micro_batches == 1, "one rank takes all rows of a step at once: accumulate must be 1");
  const TokenData data = TokenData::open(config.data, vocabulary_kind_from_name(config.vocabulary));
  const std::shared_ptr<ProcessGroup> group = make_single_group();
  config.plan.strategy = "full_shard";
  config.plan.mesh = {};
  config.plan.compiled = false;
  TrainStep one(config, nn::JobMesh("", group), data.vocabulary().size());
  double most = 0;
  for (const StepOfRun& step : steps) {
    one.set_step(step.step - 1);
    // Dropout goes by the place among all rows, which is one where the replicas are consecutive.
    nn::set_batch_part(nn::BatchPart{step.replicas.front(), std::ssize(step.replicas), num_replicas});
    const auto [tokens, targets] = rows_of(data, config, step, data_ranks, num_replicas);
    const double loss = one.update(tokens, targets).loss.item<float>();
    most = std::max(most, std::abs(loss - step.loss) / loss);
  }
  nn::set_batch_part(std::nullopt);
  return most;
}

}  // namespace sherd::testing
