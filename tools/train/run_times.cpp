#include "tools/train/run_times.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include <unistd.h>

#include "runtime/comm/group/lanes.h"
#include "runtime/cpu/parallel.h"
#include "runtime/os/allowed_cpus.h"
#include "runtime/os/host_name.h"
#include "runtime/tensor/indices.h"
#include "tools/train/gather_attrs.h"

namespace sherd::train {

namespace {

constexpr double kStragglerShare = 0.02, kStragglerFactor = 3;

double quantile(std::span<const double> sorted, double share) {
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

double exposed(const UnitTime::Part& p) { return p.exposed_transfer + p.exposed_skew; }
double exposed(const UnitTime& u) { return exposed(u.gather) + exposed(u.reduce); }

void add(UnitTime::Part& part, const UnitTime::Part& other) {
  part.calls += other.calls;
  part.seconds += other.seconds;
  part.exposed_transfer += other.exposed_transfer;
  part.exposed_skew += other.exposed_skew;
}

UnitTime::Part part_of(const WorkTime& work, std::int64_t steps) {
  const auto n = static_cast<double>(steps);
  return {static_cast<double>(work.calls) / n, work.seconds / n, work.transfer() / n, work.skew / n};
}

std::string ms(double seconds) { return fmt::format("{:.3f}", 1e3 * seconds); }

std::string line_of(const std::string& label, std::size_t width, const UnitTime& u) {
  std::string text = fmt::format("  {:<{}}", label, width);
  for (const UnitTime::Part& p : {u.gather, u.reduce})
    text += fmt::format("  {:>9} {:>9} {:>9}", ms(p.seconds), ms(p.exposed_transfer), ms(p.exposed_skew));
  return text + "\n";
}

std::string print_units(std::span<const UnitTime> units, std::size_t most) {
  std::size_t width = std::string_view("others").size();
  for (const UnitTime& u : units.first(std::min(most, units.size()))) width = std::max(width, u.unit.size());
  std::string text = fmt::format(
      "units, ms per step on rank 0; exposed to transfer, to skew (a rank that came late)\n"
      "  {0:<{1}}  {2:>9} {3:>9} {4:>9}  {5:>9} {3:>9} {4:>9}\n",
      "", width, "gather", "transfer", "skew", "reduce");
  UnitTime others;
  for (const std::size_t i : indices(units)) {
    if (i < most) {
      text += line_of(units[i].unit, width, units[i]);
      continue;
    }
    add(others.gather, units[i].gather);
    add(others.reduce, units[i].reduce);
  }
  if (units.size() > most) text += line_of("others", width, others);
  return text;
}

/// Every rank's, per step. Collective.
std::vector<RankHost> hosts_of_ranks(ProcessGroup& group, HostCounts counts, std::int64_t steps) {
  counts *= 1 / static_cast<double>(steps);
  const RankHost own{.host = host_name(),
                     .process = ::getpid(),
                     .cpu = counts.cpu,
                     .minor_faults = counts.minor_faults,
                     .major_faults = counts.major_faults,
                     .involuntary_switches = counts.involuntary_switches,
                     .throttled = counts.throttled,
                     .swap_in = counts.swap_in,
                     .cpus = static_cast<double>(allowed_cpus().count()),
                     .online = static_cast<double>(allowed_cpus().online),
                     .threads = static_cast<double>(threads())};
  if (group.size() == 1) return {own};
  std::vector<RankHost> ranks = gather_attrs(group, own);
  const std::vector<RankHost> seen = ranks;
  for (RankHost& rank : ranks) {
    const auto sharing = static_cast<double>(std::ranges::count_if(
        seen, [&](const RankHost& other) { return other.process == rank.process && other.host == rank.host; }));
    for (double* count : {&rank.cpu, &rank.minor_faults, &rank.major_faults, &rank.involuntary_switches})
      *count /= sharing;
  }
  return ranks;
}

std::string print_ranks(const RunTimes& times) {
  const auto text_of = [](const RankLateness& r) {
    return fmt::format("rank {} on {} comes {} ms after the first rank in the median of {} collectives", r.rank, r.host,
                       ms(r.median_seconds), r.calls);
  };
  std::string text;
  for (const int rank : times.stragglers)
    text += fmt::format("straggler       {}\n", text_of(times.ranks[static_cast<std::size_t>(rank)]));
  if (text.empty())
    text = fmt::format("stragglers      none: at most {}\n",
                       text_of(*std::ranges::max_element(times.ranks, {}, &RankLateness::median_seconds)));
  return text;
}

}  // namespace

StepJitter jitter_of(std::span<const double> step_seconds) {
  if (step_seconds.empty()) return {};
  std::vector<double> sorted(step_seconds.begin(), step_seconds.end());
  std::ranges::sort(sorted);
  StepJitter jitter{.count = static_cast<std::int64_t>(sorted.size()),
                    .p50 = quantile(sorted, 0.5),
                    .p95 = quantile(sorted, 0.95),
                    .max = sorted.back()};
  for (double& seconds : sorted) seconds = std::abs(seconds - jitter.p50);
  std::ranges::sort(sorted);
  jitter.mad = quantile(sorted, 0.5);
  return jitter;
}

std::vector<int> stragglers_of(std::span<const RankLateness> ranks, double step_seconds) {
  std::vector<double> sorted;
  for (const RankLateness& r : ranks) sorted.push_back(r.median_seconds);
  std::ranges::sort(sorted);
  std::vector<RankLateness> late;
  for (const RankLateness& r : ranks)
    if (r.median_seconds > 0 && r.median_seconds >= kStragglerShare * step_seconds &&
        r.median_seconds >= kStragglerFactor * quantile(sorted, 0.5))
      late.push_back(r);
  std::ranges::stable_sort(late, std::greater<>(), &RankLateness::median_seconds);
  std::vector<int> result;
  for (const RankLateness& r : late) result.push_back(r.rank);
  return result;
}

std::vector<UnitTime> unit_times(std::span<const WorkTime> work, std::int64_t steps) {
  std::map<std::string, UnitTime> by_unit;
  for (const WorkTime& w : work) {
    const bool gathers = w.queue == kGatherQueue, reduces = w.queue == kReduceQueue || w.queue == kReplicateQueue;
    if (steps == 0 || w.calls == 0 || !(gathers || reduces) || w.subject.empty()) continue;
    UnitTime& unit = by_unit[w.subject];
    unit.unit = w.subject;
    add(gathers ? unit.gather : unit.reduce, part_of(w, steps));
  }
  std::vector<UnitTime> units;
  for (auto& [name, unit] : by_unit) units.push_back(std::move(unit));
  std::ranges::stable_sort(units, std::greater<>(), [](const UnitTime& u) { return exposed(u); });
  return units;
}

RunCounters RunCounters::now(ProcessGroup& group) { return {work_times(), lateness_of(group), host_counts()}; }

RunCounters& RunCounters::operator-=(const RunCounters& other) {
  std::map<std::array<std::string_view, 3>, const WorkTime*> before;
  for (const WorkTime& w : other.work) before.emplace(std::array<std::string_view, 3>{w.queue, w.name, w.subject}, &w);
  for (WorkTime& w : work)
    if (const auto found = before.find({w.queue, w.name, w.subject}); found != before.end()) w -= *found->second;
  lateness -= other.lateness;
  host -= other.host;
  return *this;
}

void RunClock::start() {
  has_started_ = true;
  begun_ = RunCounters::now(group_);
}

RunClock::Pause::Pause(RunClock& clock) : clock_(clock) {
  if (clock_.has_started_) before_ = RunCounters::now(clock_.group_);
}

RunClock::Pause::~Pause() {
  if (!clock_.has_started_) return;
  RunCounters counted = RunCounters::now(clock_.group_);
  counted -= before_;
  for (const WorkTime& w : counted.work) {
    const auto same = std::ranges::find_if(clock_.begun_.work, [&w](const WorkTime& b) {
      return b.queue == w.queue && b.name == w.name && b.subject == w.subject;
    });
    if (same != clock_.begun_.work.end()) *same += w;
    else clock_.begun_.work.push_back(w);
  }
  clock_.begun_.lateness += counted.lateness;
  clock_.begun_.host += counted.host;
}

void RunClock::add_step(double seconds) {
  if (recent_.size() < kRecentSteps) recent_.push_back(seconds);
  else recent_[static_cast<std::size_t>(num_steps_) % kRecentSteps] = seconds;
  ++num_steps_;
}

RunTimes RunClock::times() const {
  RunTimes times{.steps = jitter_of(recent_)};
  times.steps.count = num_steps_;
  RunCounters counted = RunCounters::now(group_);
  counted -= begun_;
  times.units = unit_times(counted.work, has_started_ ? times.steps.count : 0);
  if (times.steps.count > 0) times.hosts = hosts_of_ranks(group_, counted.host, times.steps.count);
  if (group_.size() == 1) return times;
  RankLateness own{.rank = group_.rank(), .host = "-"};
  if (has_started_) own = {own.rank, host_name(), counted.lateness.calls(), counted.lateness.median_seconds()};
  times.ranks = gather_attrs(group_, own);
  times.stragglers = stragglers_of(times.ranks, times.steps.p50);
  return times;
}

std::string print_run_times(const RunTimes& times, std::size_t most) {
  if (times.steps.count == 0) return "";
  std::string text =
      fmt::format("step time       p50 {} ms, p95 {} ms, max {} ms, MAD {} ms over {} steps\n", ms(times.steps.p50),
                  ms(times.steps.p95), ms(times.steps.max), ms(times.steps.mad), times.steps.count);
  if (std::cmp_greater(times.steps.count, kRecentSteps))
    text += fmt::format("                of the last {} of them\n", kRecentSteps);
  if (!times.ranks.empty()) text += print_ranks(times);
  if (!times.units.empty()) text += print_units(times.units, most);
  return text;
}

}  // namespace sherd::train
