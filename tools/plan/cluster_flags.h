#pragma once
// What is planned on, as flags say it, and files of published rows.
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/exec/cluster.h"
#include "tools/train/links.h"

namespace sherd::plan {

inline constexpr int kMostPlannedRanks = 1 << 20;

struct ClusterFlags {
  std::string device_model;              ///< name, model or calibration; empty: this machine, if it is calibrated
  std::string software;                  ///< one of the device's factors; empty: none
  std::string fabric;                    ///< "in=nvlink4,out=ib400x1"
  std::int64_t hosts = 0, per_host = 0;  ///< 0: not said
};

/// The hosts, by the flags. ExitError of usage that names them.
HostLayout hosts_of(const ClusterFlags& flags, int ranks);
/// The cluster of `ranks` ranks: without a device those of this machine, if `sherd calibrate` has measured so many of
/// them, else nothing. `link` shapes axes, in place of fabrics. ExitError of usage
/// that names the flag, its value and what there is.
std::optional<Cluster> cluster_of(const ClusterFlags& flags, int ranks, const train::Links& link);

}  // namespace sherd::plan
