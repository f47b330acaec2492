#include "tools/diagnose/priced_run.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/os/host_memory.h"
#include "tools/plan/presets.h"
#include "tools/train/calibration.h"

namespace sherd::diagnose {

namespace {

// A core of today, roughly: what counts is how calls compare with one another, as all are scaled to the run.
DeviceModel plain_cpu() {
  DeviceModel device;
  device.name = "a plain CPU";
  device.call_seconds = 1e-6;
  const Rate products{.points = {{1e4, 4e9}, {1e6, 3e10}, {1e7, 5e10}, {1e9, 7e10}}, .source = "rough"};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    device.products[dtype] = device.attention[dtype] = products;
  device.read = device.copied = {.points = {{0, 1e10}}, .source = "rough"};
  return device;
}

// Layers times micro-batches: a ghost takes some tenths of a millisecond for each, and a finding plays several ghosts.
constexpr std::int64_t kMostParts = 4096;

/// As the run was, without what is about files and one invocation.
TrainConfig step_of(TrainConfig config) {
  config.data.clear();
  config.metrics.clear();
  config.trace.clear();
  config.trace_steps = "";
  config.save.clear();
  config.save_every = 0;
  config.save_async = config.overwrite = false;
  config.on_nonfinite = "stop";
  config.spike = 0;
  config.resume.clear();
  config.init_from.clear();
  config.dump_graph.clear();
  config.link = {};
  config.memory_limit = 0;
  return config;
}

struct Transfers {
  double calls = 0, seconds = 0;
};

/// Seconds of a call by bytes, with a point for calls of no bytes.
std::vector<FabricModel::Point> curve_of(const std::map<double, Transfers>& by_bytes, int ranks) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [bytes, transfers] : by_bytes) {
    const double seconds = transfers.seconds / transfers.calls;
    n += 1, x += bytes, y += seconds, xx += bytes * bytes, xy += bytes * seconds;
  }
  const double slope = n > 1 ? (n * xy - x * y) / (n * xx - x * x) : 0;
  const double fewest = by_bytes.begin()->second.seconds / by_bytes.begin()->second.calls;
  const double most = 0.9 * fewest;
  const double at_none = std::clamp(n > 1 ? (y - slope * x) / n : LinkPrice().call_seconds, std::min(2e-6, most), most);
  std::vector<FabricModel::Point> curve{{ranks, 1, at_none}};
  for (const auto& [bytes, transfers] : by_bytes)
    curve.push_back({ranks, bytes, std::max(transfers.seconds / transfers.calls, curve.back().seconds)});
  return curve;
}

}  // namespace

// The axes' own links are in what units have taken.
void PricedRun::price_links(const RunFile& run) {
  FabricModel& fabric = planned_.cluster->in;
  fabric.name = "the run's link";
  const auto& times = run.last_evaluation().metrics.times;
  if (!times) return;
  std::map<std::string, const UnitTime*, std::less<>> units;
  for (const UnitTime& unit : times->units) units[unit.unit] = &unit;
  const Timeline& step = now_.forecast.step;
  std::map<std::pair<int, int>, std::map<double, Transfers>> measured;  // by movement and ranks, then bytes
  double bytes = 0, seconds = 0, usual = 0;
  for (const Timeline::Item& item : step.items) {
    const auto unit = units.find(step.text(item.subject));
    if (item.group == Timeline::kNone || unit == units.end()) continue;
    const bool gathers = item.movement == Movement::gather;
    const UnitTime::Part& part = gathers ? unit->second->gather : unit->second->reduce;
    if (part.calls <= 0 || part.seconds <= part.exposed_skew) continue;
    const int ranks = step.groups[item.group].grid.size();
    const double each = (part.seconds - part.exposed_skew) / part.calls;
    Transfers& transfers = measured[{static_cast<int>(item.movement), ranks}][item.bytes];
    transfers.calls += 1;
    transfers.seconds += each;
    if (!gathers) continue;
    bytes += wire_bytes(item.movement, ranks, item.bytes);
    seconds += each;
    usual += LinkPrice().seconds(item.movement, ranks, item.bytes);
  }
  for (const auto& [key, by_bytes] : measured) {
    auto& curve = fabric.curves[static_cast<std::size_t>(key.first)];
    const std::vector<FabricModel::Point> more = curve_of(by_bytes, key.second);
    curve.insert(curve.end(), more.begin(), more.end());
  }
  if (seconds > 0) fabric.link.bytes_per_second = bytes_per_second_ = bytes / seconds;
  if (usual > 0) times_slower_ = seconds / usual;
}

PricedRun::PricedRun(const RunFile& run, const Shares& shares, const TraceFile* trace, const std::string& device_model)
    : measured_(shares.at(Share::compute) + shares.transfers()) {
  const TrainConfig config = step_of(run.config);
  planned_.ranks = run.ranks;
  planned_.vocabulary = config.model.vocabulary > 0 ? config.model.vocabulary : 256;
  if (const std::int64_t parts = config.model.layers * config.plan.micro_batches; parts > kMostParts) {
    now_.left_out = fmt::format("{} layers in {} micro-batches are more than {} to play", config.model.layers,
                                config.plan.micro_batches, kMostParts);
    return;
  }
  now_ = plan::option_of(config, planned_);
  memory_ = run.config.memory_limit > 0 ? run.config.memory_limit : host_memory() / run.ranks;
  Calibration prices = device_model.empty() ? Calibration{.device = plain_cpu()}
                                            : plan::find_priced_device(device_model, "--device-model");
  if (!now_.has_forecast()) return;
  planned_.cluster = calibrated_cluster(std::move(prices), run.ranks, {});
  planned_.cluster->in = {};  // what units took is of the run itself
  planned_.cluster->core_share = 0;
  if (trace) planned_.cluster->calls = trace->calls;
  price_links(run);
  const double compute = simulate(now_.forecast.step, *planned_.cluster).of(0).compute;
  if (compute > 0) {
    planned_.cluster->software = shares.at(Share::compute) / compute;
    for (auto& [call, seconds] : planned_.cluster->calls) seconds *= planned_.cluster->software;
  }
  now_.simulated = simulate(now_.forecast.step, *planned_.cluster);
}

double PricedRun::scale() const { return measured_ / std::max(now_.simulated->seconds, 1e-12); }

std::optional<Simulation> PricedRun::simulated(const plan::Changes& changes) const {
  if (!now_.simulated) return std::nullopt;
  plan::Option other = plan::changed(now_, changes, planned_);
  if (!other.has_forecast() || other.forecast.memory.bytes > memory_) return std::nullopt;
  return std::move(other.simulated);
}

std::optional<double> PricedRun::gain(const plan::Changes& changes, double tokens) const {
  const std::optional<Simulation> other = simulated(changes);
  if (!other) return std::nullopt;
  return (now_.simulated->seconds - other->seconds / tokens) * scale();
}

std::optional<double> PricedRun::gain_of_compute(const plan::Changes& changes, double tokens) const {
  const std::optional<Simulation> other = simulated(changes);
  if (!other) return std::nullopt;
  return now_.simulated->of(0).compute - other->of(0).compute / tokens;
}

double PricedRun::gain_on_link(double bytes_per_second) const {
  if (!now_.simulated) return 0;
  Cluster other = *planned_.cluster;
  other.in = {.name = "another link", .link = {.bytes_per_second = bytes_per_second}, .curves = {}, .source = ""};
  return (now_.simulated->seconds - simulate(now_.forecast.step, other).seconds) * scale();
}

}  // namespace sherd::diagnose
