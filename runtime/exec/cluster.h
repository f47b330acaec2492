#pragma once
// Prices of a whole job: its devices, its hosts, and what lies between them. group_link() is what one group of ranks
// communicates over; every prediction of a collective asks it.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/exec/calibration.h"
#include "runtime/exec/host_layout.h"
#include "runtime/exec/price.h"

namespace sherd {

struct Cluster {
  DeviceModel device;
  HostLayout hosts;
  FabricModel in;                  ///< between ranks of a host
  std::optional<FabricModel> out;  ///< between hosts; needed where there are several
  /// Shaped links by the axis' label ("dp"); "" is of all axes without one. They replace the fabrics.
  std::map<std::string, LinkPrice, std::less<>> axes{};
  /// Measured seconds of calls by row and shapes, "linear f32[2,3] f32[4,3]": they come before the device's rates.
  std::map<std::string, double, std::less<>> calls{};
  MeasuredCalls measured{};  ///< come after `calls` and before the device's rates
  /// Part of the seconds of a collective on `in` that the rank's own core works on it, see Calibration.
  double core_share = 0;
  double software = 1;  ///< factor of seconds of compute: a value of device.software
};

/// The link of one group. Points into its cluster.
struct GroupLink {
  int ranks = 1;
  const FabricModel* in = nullptr;   ///< null where a shaped link replaces it
  const FabricModel* out = nullptr;  ///< null if the group stays in its host
  const LinkPrice* shaped = nullptr;
  const FabricModel* host = nullptr;  ///< what moves bytes within a host, on a shaped link too
  double core_share = 0;              ///< the cluster's
  double sharing = 1;  ///< bytes on `out` count so often: groups that share a NIC; below 1 where a group has several

  /// The slower of both holds a ring up.
  double seconds(Movement movement, double bytes) const;
  bool covers(Movement movement, double bytes) const;
  /// Seconds in which the rank's own core works on it.
  double core_seconds(Movement movement, double bytes) const {
    return core_share > 0 ? core_share * host->seconds(movement, ranks, bytes) : 0;
  }
  /// "nvlink4", "ib400x1": what the bytes are said to be on; of a shaped link "link".
  std::string_view name() const;
};
/// The link of the group of `rank`, whose axis is `label`. Error if it leaves its host and the cluster has no fabric
/// between hosts.
GroupLink group_link(const Cluster& cluster, std::string_view label, const RankGrid& grid, int rank);

}  // namespace sherd
