#include "tools/train/step_prices.h"

#include "runtime/comm/job/hosts.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/simulate.h"

namespace sherd::train {

StepPrices::StepPrices(Device device, int ranks) : ranks_(ranks) {
  if (device != Device::cpu()) {
    text_ = "not calibrated: calibrations are of CPUs; sherd plan --device-model prices a GPU";
    return;
  }
  if (const RankInfo rank = discover_rank(); rank.world_size == ranks && has_other_hosts(rank)) {
    text_ = "not calibrated: ranks are on several hosts, and calibrations are of one; sherd plan --fabric";
    return;
  }
  FoundCalibration found = find_calibration(ranks, cache_folder(), threads());
  text_ = std::move(found.text);
  made_ = std::move(found.made);
}

StepPrices::Times StepPrices::of(const Timeline& step, const Links& links) const {
  check(are_known(), "a step of {} ranks is priced by nothing: {}", ranks_, text_);
  const Simulation simulated = simulate(step, calibrated_cluster(*made_, ranks_, links));
  const Simulation::RankTimes& rank = simulated.of(0);
  return {simulated.seconds, rank.transfer + rank.throttle + rank.skew, simulated.is_extrapolated};
}

}  // namespace sherd::train
