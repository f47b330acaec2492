#include "tools/calibrate/fit.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "runtime/comm/group/agree.h"

namespace sherd::calibrate {

namespace {

constexpr double kAlike = 1.02;  ///< sizes that differ by less are one

/// Calls that count as one point.
struct Sum {
  WorkKind kind = WorkKind::issue;
  double flops = 0, bytes = 0;  ///< of one of them
  double seconds = 0, count = 0;
};
using Sums = std::map<std::string, std::vector<Sum>>;  // by row and type

bool are_alike(double a, double b) { return a <= b * kAlike && b <= a * kAlike; }

void add(Sums& sums, const std::string& key, const Sum& more) {
  std::vector<Sum>& own = sums[key];
  const auto same = std::ranges::find_if(own, [&](const Sum& sum) {
    return sum.kind == more.kind && are_alike(sum.flops, more.flops) && are_alike(sum.bytes, more.bytes);
  });
  if (same == own.end()) return own.push_back(more);
  same->seconds += more.seconds;
  same->count += more.count;
}

double mean(std::vector<double> values, bool shares_cpus) {
  std::ranges::sort(values);
  if (!shares_cpus) values.resize(values.size() - values.size() / 5);
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// A line for each set of shapes: kind, FLOPs, bytes, seconds, count, row and type.
std::string text_of(std::span<const TracedRun> runs, bool shares_cpus) {
  std::string text;
  for (const TracedRun& run : runs)
    for (const auto& [key, call] : run.calls)
      if (!call.seconds.empty())
        text += fmt::format("{} {} {} {} {} {} {}\n", name(call.work.kind), call.work.flops, call.work.bytes,
                            mean(call.seconds, shares_cpus), call.seconds.size(), call.row, name(call.work.dtype));
  return text;
}

Sums sums_of(const std::vector<std::string>& texts) {
  Sums sums;
  for (const std::string& text : texts) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string kind, row, type;
      Sum sum;
      double one = 0;
      words >> kind >> sum.flops >> sum.bytes >> one >> sum.count >> row >> type;
      sum.kind = work_kind_from_name(kind);
      sum.seconds = one * sum.count;
      add(sums, fmt::format("{} {}", row, type), sum);
    }
  }
  return sums;
}

/// Work over the seconds that it has taken.
struct Speed {
  double work = 0, seconds = 0;
  void add(double more, double took) { work += more, seconds += took; }
  Rate rate(const std::string& source) const { return {.points = {{1, work / seconds}}, .source = source}; }
};

}  // namespace

MeasuredCalls measured_calls(std::span<const TracedRun> runs, bool shares_cpus, ProcessGroup& group) {
  MeasuredCalls calls;
  for (const auto& [key, sums] : sums_of(gather_text(group, text_of(runs, shares_cpus)))) {
    std::vector<CallPoint>& points = calls.rows[key];
    for (const Sum& sum : sums)
      if (sum.bytes > 0) points.push_back({sum.flops, sum.bytes, sum.seconds / sum.count});
    std::ranges::sort(points, {}, &CallPoint::bytes);
    if (points.empty()) calls.rows.erase(key);
  }
  return calls;
}

DeviceModel device_of(std::span<const TracedRun> runs) {
  DeviceModel device{.name = "", .source = "measured"};
  std::map<DType, Speed> products, attention;
  std::map<WorkKind, Speed> rows;
  Speed bytes;
  std::vector<double> beside;  // of a call, by run
  for (const TracedRun& run : runs) {
    beside.push_back(run.beside / run.num_calls);
    for (const auto& [key, call] : run.calls) {
      if (call.seconds.empty() || call.work.bytes <= 0) continue;
      const double took = mean(call.seconds, false);
      if (call.work.kind == WorkKind::contraction) products[call.work.dtype].add(call.work.flops, took);
      else if (call.work.kind == WorkKind::attention) attention[call.work.dtype].add(call.work.flops, took);
      else rows[call.work.kind].add(call.work.bytes, took), bytes.add(call.work.bytes, took);
    }
  }
  for (const auto& [dtype, speed] : products) device.products[dtype] = speed.rate(device.source);
  for (const auto& [dtype, speed] : attention) device.attention[dtype] = speed.rate(device.source);
  for (const auto& [kind, speed] : rows) device.rows[kind] = speed.rate(device.source);
  device.read = bytes.rate(device.source);
  device.copied = rows.contains(WorkKind::copy) ? rows[WorkKind::copy].rate(device.source) : device.read;
  std::ranges::nth_element(beside, beside.begin() + std::ssize(beside) / 2);
  device.call_seconds = beside[beside.size() / 2];
  return device;
}

}  // namespace sherd::calibrate
