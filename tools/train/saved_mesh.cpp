#include "tools/train/saved_mesh.h"

#include <algorithm>
#include <vector>

namespace sherd::train {

namespace {

/// The most ranks with data of their own, below `data_ranks`, that the batch divides into: "2 ranks".
std::string ranks_that_divide(const TrainConfig& config, std::int64_t data_ranks) {
  std::int64_t ranks = std::max<std::int64_t>(data_ranks - 1, 1);
  while (ranks > 1 && !nn::divides(config.plan, config.batch, ranks)) --ranks;
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

std::string without_replicas(const nn::Strategy& strategy) {
  nn::UnitPolicy policy = strategy.value();
  policy.optimizer = policy.parameters;  // without replicas nothing is divided among them
  return std::string(nn::strategy_name(policy, false));
}

}  // namespace

std::string take_ranks_there_are(TrainConfig& config, const ConfigTable& given, int ranks) {
  std::vector<std::string> changes;
  const std::int64_t saved = config.plan.mesh.count(ranks);
  if (saved != ranks && !given.is_given("mesh")) {
    changes.push_back(fmt::format("mesh {} is for {} ranks, takes dp={}", config.plan.mesh.text(), saved, ranks));
    config.plan.mesh = {};
    if (!given.is_given("strategy") && config.plan.strategy.value().needs_replicas) {
      const std::string plain = without_replicas(config.plan.strategy);
      changes.push_back(fmt::format("strategy {} copies over replicate, takes {}", config.plan.strategy.text(), plain));
      config.plan.strategy = plain;
    }
    if (!given.is_given("link") && config.link.names_axes()) {
      changes.push_back(fmt::format("link {} is of axes of that mesh, takes none", config.link.text()));
      config.link = {};
    }
  }
  const std::optional<int> slices = config.plan.reshard_after_forward.ranks();
  if (slices && *slices > 0 && !given.is_given("reshard_after_forward") &&
      nn::MeshAxes(config.plan.mesh.over(ranks)).size("dp") % *slices != 0) {
    changes.push_back(fmt::format("reshard_after_forward {} does not divide dp, takes true", *slices));
    config.plan.reshard_after_forward = true;
  }
  if (changes.empty()) return "";
  return fmt::format("resume from {} on {} rank{}: {}{}", config.resume, ranks, ranks == 1 ? "" : "s",
                     fmt::join(changes, "; "), ranks == 1 ? "" : "; pass --mesh to choose");
}

std::int64_t local_batch(const TrainConfig& config, std::int64_t data_ranks) {
  const nn::TrainingPlan& plan = config.plan;
  const bool divides = nn::divides(plan, config.batch, data_ranks);
  const bool can_split = plan.mesh.is_open() && config.model.kv_heads > 0 && config.model.kv_heads % data_ranks == 0;
  check(divides || config.resume.empty(),
        "batch = {} does not divide into {} ranks x {} micro-batches, and a resume keeps the batch; go on with {}{}",
        config.batch, data_ranks, plan.micro_batches, ranks_that_divide(config, data_ranks),
        can_split ? fmt::format(", or give the ranks to tp by --mesh dp=1,tp={}", data_ranks) : "");
  return nn::local_batch(plan, config.batch, data_ranks);
}

}  // namespace sherd::train
