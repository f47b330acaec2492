#pragma once
// What predictions of a walk's rows are priced by.
#include <string>

#include "runtime/exec/cluster.h"
#include "runtime/exec/timeline.h"
#include "tools/train/links.h"

namespace sherd::walk {

using namespace train;

/// A calibration of this machine for the walk's ranks (tools/train/calibration.h); without one, and on GPUs, a usual
/// CPU, whose compute takes as many times longer as a run has shown.
class WalkPrices {
 public:
  WalkPrices(int ranks, Device device);

  bool is_calibrated() const { return is_calibrated_; }
  /// Without a calibration: fits the one number that it has, so that the step takes `seconds` without a link.
  void fit(const Timeline& step, double seconds);
  Cluster cluster(const Links& links) const;
  /// What is to be said of them.
  std::string text() const;

 private:
  const int ranks_;
  Calibration prices_;
  bool is_calibrated_ = false;
  double factor_ = 1;
  std::string text_;
};

}  // namespace sherd::walk
