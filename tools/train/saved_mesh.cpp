#include "tools/train/saved_mesh.h"

#include <vector>

#include "nn/parallel/shard/unit/policy.h"
#include "tools/train/job_mesh.h"

namespace sherd {

namespace {

int size_of_dp(const TrainConfig& config, int ranks) {
  for (const DeviceMesh::Axis& axis : parse_mesh(config.mesh, ranks))
    if (axis.name == "dp") return axis.size;
  return 1;
}

std::string without_replicas(const std::string& strategy) {
  nn::UnitPolicy policy = nn::strategy(strategy);
  policy.optimizer = policy.parameters;  // without replicas nothing is divided among them
  return std::string(nn::strategy_name(policy, false));
}

}  // namespace

std::string take_ranks_there_are(TrainConfig& config, const ConfigTable& given, int ranks) {
  std::vector<std::string> changes;
  const std::int64_t saved = count_ranks(config.mesh, ranks);
  if (saved != ranks && !given.is_given("mesh")) {
    changes.push_back(fmt::format("mesh {} is for {} ranks, takes dp={}", config.mesh, saved, ranks));
    config.mesh.clear();
    if (!given.is_given("strategy") && nn::strategy(config.strategy).needs_replicas) {
      const std::string plain = without_replicas(config.strategy);
      changes.push_back(fmt::format("strategy {} copies over replicate, takes {}", config.strategy, plain));
      config.strategy = plain;
    }
    if (!given.is_given("link") && config.link.find('=') != std::string::npos) {
      changes.push_back(fmt::format("link {} is of axes of that mesh, takes none", config.link));
      config.link.clear();
    }
  }
  const auto* const slices = std::get_if<std::int64_t>(&config.reshard_after_forward);
  if (slices != nullptr && *slices > 0 && !given.is_given("reshard_after_forward") &&
      size_of_dp(config, ranks) % *slices != 0) {
    changes.push_back(fmt::format("reshard_after_forward {} does not divide dp, takes true", *slices));
    config.reshard_after_forward = true;
  }
  if (changes.empty()) return "";
  return fmt::format("resume from {} on {} rank{}: {}{}", config.resume, ranks, ranks == 1 ? "" : "s",
                     fmt::join(changes, "; "), ranks == 1 ? "" : "; pass --mesh to choose");
}

}  // namespace sherd
