#include "tools/walk/prices.h"

#include "runtime/exec/simulate.h"
#include "tools/train/calibration.h"

namespace sherd::walk {

namespace {

/// Rates as cores of servers have them: what counts is how they stand to each other.
Calibration usual_cpu() {
  const auto rate = [](double per_second) { return Rate{{{1, per_second}}, "a usual CPU"}; };
  DeviceModel device{
      .name = "a usual CPU", .call_seconds = 3e-6, .read = rate(1e10), .copied = rate(1e10), .source = "a usual CPU"};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) device.products[dtype] = rate(1e11);
  device.links["ranks"] = {.name = "ranks", .link = LinkPrice(), .source = "processes that share memory"};
  return {.device = std::move(device)};
}

}  // namespace

WalkPrices::WalkPrices(int ranks, Device device) : ranks_(ranks), prices_(usual_cpu()) {
  if (device != Device::cpu()) {
    text_ = "not calibrated: calibrations are of CPUs";
    return;
  }
  FoundCalibration found = find_calibration(ranks);
  is_calibrated_ = found.made.has_value();
  if (found.made) prices_ = std::move(*found.made);
  text_ = std::move(found.text);
}

void WalkPrices::fit(const Timeline& step, double seconds) {
  if (is_calibrated_) return;
  for (int i = 0; i < 20; ++i) factor_ *= seconds / simulate(step, cluster({})).seconds;
}

Cluster WalkPrices::cluster(const Links& links) const {
  Cluster cluster = calibrated_cluster(prices_, ranks_, links);
  cluster.software = factor_;
  return cluster;
}

std::string WalkPrices::text() const {
  return is_calibrated_ ? text_ : text_ + "; the default run without a link says how fast this machine computes";
}

}  // namespace sherd::walk
