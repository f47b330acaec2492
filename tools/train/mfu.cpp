#include "tools/train/mfu.h"

#include <algorithm>
#include <map>
#include <string>

#include "runtime/cpu/parallel.h"
#include "runtime/os/allowed_cpus.h"
#include "runtime/os/host_name.h"
#include "tools/train/fma_peak.h"
#include "tools/train/gather_attrs.h"

namespace sherd::train {

namespace {

struct RankPeak {
  std::string host{};
  int threads = 1, cpus = 1;
  double of_thread = 0;
  static constexpr AttrField fields[] = {attr<&RankPeak::host>("host"), attr<&RankPeak::threads>("threads"),
                                         attr<&RankPeak::cpus>("cpus"), attr<&RankPeak::of_thread>("of_thread")};
};

}  // namespace

double step_flops(const TrainConfig& config, std::int64_t parameters) {
  const TrainConfig::Model& m = config.model;
  const double attention = 6.0 * static_cast<double>(m.layers) * static_cast<double>(m.sequence * m.width);
  return static_cast<double>(config.batch * m.sequence) * (6.0 * static_cast<double>(parameters) + attention);
}

double peak_flops(const TrainConfig& config, ProcessGroup& group) {
  constexpr std::int64_t kLoops = 100'000;
  if (config.plan.device != Device::cpu()) return 0;
  RankPeak own{.host = host_name(), .threads = threads(), .cpus = allowed_cpus().count()};
  for (int i = 0; i < 3; ++i)
    own.of_thread = std::max(own.of_thread, flops_per_second(config.plan.param_dtype, kLoops));
  std::map<std::string, RankPeak> hosts;
  for (const RankPeak& rank : group.size() == 1 ? std::vector{own} : gather_attrs(group, own)) {
    const auto [host, is_new] = hosts.try_emplace(rank.host, rank);
    if (is_new) continue;
    host->second.threads += rank.threads;
    host->second.cpus = std::max(host->second.cpus, rank.cpus);
    host->second.of_thread = std::max(host->second.of_thread, rank.of_thread);
  }
  double sum = 0;
  for (const auto& [name, host] : hosts) sum += host.of_thread * std::min(host.threads, host.cpus);
  return sum;
}

}  // namespace sherd::train
