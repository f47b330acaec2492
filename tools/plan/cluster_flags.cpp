#include "tools/plan/cluster_flags.h"

#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "runtime/tensor/nearest.h"
#include "tools/plan/presets.h"
#include "tools/train/calibration.h"
#include "tools/train/exit_status.h"

namespace sherd::plan {

using namespace train;

namespace {

std::optional<int> count_of(std::int64_t value, std::string_view flag) {
  check_usage(value >= 0 && std::in_range<int>(value), "{} must be a positive number, got {}", flag, value);
  return value == 0 ? std::nullopt : std::optional(static_cast<int>(value));
}

double software_factor(const DeviceModel& device, const std::string& name) {
  if (name.empty()) return 1;
  const auto found = device.software.find(name);
  std::vector<std::string> names;
  for (const auto& [key, value] : device.software) names.push_back(key);
  check_usage(found != device.software.end(), "--software {}: the model of {} has no such factor{}; it has {}", name,
              device.name, did_you_mean(name, names),
              names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  return found->second.value;
}

Cluster calibrated(Calibration calibration, int ranks, const Links& link) {
  std::string said = said_of(calibration, ranks);
  Cluster cluster = calibrated_cluster(std::move(calibration), ranks, link);
  cluster.device.source = std::move(said);
  return cluster;
}

/// This machine, if it has been calibrated for so many ranks.
std::optional<Cluster> calibrated_here(int ranks, const Links& link) {
  FoundCalibration found = find_calibration(ranks);
  return found.made ? std::optional(calibrated(std::move(*found.made), ranks, link)) : std::nullopt;
}

/// What --device-model names, without links where it is no calibration.
Cluster named_cluster(const std::string& device_model, int ranks, const Links& link) {
  Calibration found = find_priced_device(device_model, "--device-model");
  if (!found.build.empty()) return calibrated(std::move(found), ranks, link);
  Cluster cluster{.device = std::move(found.device), .hosts = {}, .in = {}, .out = {}};
  cluster.axes = link_prices(link);
  return cluster;
}

}  // namespace

HostLayout hosts_of(const ClusterFlags& flags, int ranks) {
  return as_usage(
      [&] { return host_layout(ranks, count_of(flags.hosts, "--hosts"), count_of(flags.per_host, "--per-host")); });
}

std::optional<Cluster> cluster_of(const ClusterFlags& flags, int ranks, const Links& link) {
  const HostLayout hosts = hosts_of(flags, ranks);
  if (flags.device_model.empty()) {
    check_usage(flags.software.empty(), "--software {} is a factor of a device; give --device-model", flags.software);
    check_usage(flags.fabric.empty(),
                "--fabric {} is a price, and nothing is priced without --device-model; there are {}", flags.fabric,
                fmt::join(preset_names("devices"), ", "));
    return hosts.hosts == 1 ? calibrated_here(ranks, link) : std::nullopt;
  }
  Cluster cluster = named_cluster(flags.device_model, ranks, link);
  cluster.hosts = hosts;
  cluster.software = software_factor(cluster.device, flags.software);
  if (flags.fabric.empty()) {
    const bool has_links = hosts.hosts == 1 && !cluster.in.name.empty();
    check_usage(ranks == 1 || link.any() || has_links, "{} ranks need links: give --fabric in=NAME{}, of {}, or --link",
                ranks, hosts.hosts > 1 ? ",out=NAME" : "", fmt::join(preset_names("fabrics"), ", "));
    return cluster;
  }
  const FabricNames names = as_usage([&] { return parse_fabric_names(flags.fabric); });
  cluster.in = find_fabric(names.in, "--fabric in");
  if (!names.out.empty()) cluster.out = find_fabric(names.out, "--fabric out");
  check_usage(hosts.hosts == 1 || cluster.out || link.any(),
              "--hosts {}: groups span hosts, and --fabric {} names no link between them; add out=NAME, of {}",
              hosts.hosts, flags.fabric, fmt::join(preset_names("fabrics"), ", "));
  return cluster;
}

}  // namespace sherd::plan
