#include "runtime/exec/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "runtime/exec/price_json.h"
#include "runtime/exec/strict_json.h"

namespace sherd {

namespace {

bool counts_flops(const CallWork& work) {
  return work.kind == WorkKind::contraction || work.kind == WorkKind::attention;
}
double amount_of(const CallPoint& point, const CallWork& work) {
  return counts_flops(work) ? point.flops : point.bytes;
}

/// By row and type, or null; none of work without an amount.
const std::vector<CallPoint>* points_of(const MeasuredCalls& calls, std::string_view row, const CallWork& work) {
  if (calls.rows.empty() || !((counts_flops(work) ? work.flops : work.bytes) > 0)) return nullptr;
  const auto found = calls.rows.find(fmt::format("{} {}", row, name(work.dtype)));
  return found == calls.rows.end() ? nullptr : &found->second;
}

// A power of the size between two points, the rate of the nearest outside.
double by_neighbours(std::span<const CallPoint> points, double bytes) {
  const auto above = std::ranges::lower_bound(points, bytes, {}, &CallPoint::bytes);
  if (above == points.begin()) return above->seconds * bytes / above->bytes;
  const CallPoint& a = *std::prev(above);
  if (above == points.end()) return a.seconds * bytes / a.bytes;
  const double part = above->bytes == a.bytes ? 0 : std::log(bytes / a.bytes) / std::log(above->bytes / a.bytes);
  return a.seconds * std::pow(above->seconds / a.seconds, part);
}

// Rates of the nearest three count by nearness. Products of as many FLOPs and bytes have sides alike.
double by_nearest(std::span<const CallPoint> points, const CallWork& work) {
  struct Near {
    double distance = HUGE_VAL, rate = 0;
  };
  std::array<Near, 3> nearest{};
  for (const CallPoint& p : points) {
    Near near{std::hypot(std::log(p.flops / work.flops), std::log(p.bytes / work.bytes)), p.flops / p.seconds};
    for (Near& kept : nearest)
      if (near.distance < kept.distance) std::swap(near, kept);
  }
  double weights = 0, sum = 0;
  for (const Near& near : nearest) {
    const double weight = 1 / std::max(near.distance, 1e-6);  // of none 0
    weights += weight;
    sum += weight * near.rate;
  }
  return sum > 0 ? work.flops * weights / sum : by_neighbours(points, work.bytes);
}

class CalibrationReader {
 public:
  CalibrationReader(std::string_view text, std::string_view name)
      : file_(name), name_(name), root_(parse_strict_json(text, name)) {
    file_.check_names(file_.object(root_, "the calibration"),
                      {"build", "ranks", "threads", "time", "core_share", "device", "calls"});
  }
  Calibration read() const {
    return {.device = read_device_model(member("device"), name_),
            .calls = calls(),
            .core_share = file_.number(member("core_share"), "\"core_share\""),
            .build = file_.text(member("build"), "\"build\""),
            .ranks = file_.count(member("ranks"), "\"ranks\"", 1),
            .threads = file_.count(member("threads"), "\"threads\"", 1),
            .time = file_.number(member("time"), "\"time\"")};
  }

 private:
  const JsonValue& member(std::string_view name) const { return file_.required(root_, name); }

  MeasuredCalls calls() const {
    MeasuredCalls calls;
    for (const auto& [row, items] : file_.object(member("calls"), "\"calls\"").members) {
      std::vector<CallPoint>& points = calls.rows[row];
      for (const JsonValue& item : file_.array(items, row).items) {
        points.push_back(point(item, row));
        if (points.size() > 1 && points.back().bytes < points[points.size() - 2].bytes)
          file_.fail_at(item, "{}: calls come by bytes: {} after {}", row, points.back().bytes,
                        points[points.size() - 2].bytes);
      }
      if (points.empty()) file_.fail_at(items, "{} has no calls", row);
    }
    return calls;
  }
  CallPoint point(const JsonValue& item, std::string_view row) const {
    if (file_.array(item, "a call").items.size() != 3)
      file_.fail_at(item, "{}: a call is [FLOPs, bytes, seconds], not {} numbers", row, item.items.size());
    return {file_.number(item.items[0], "FLOPs"), file_.number(item.items[1], "bytes", 0, true),
            file_.number(item.items[2], "seconds", 0, true)};
  }

  JsonFile file_;
  std::string_view name_;
  JsonValue root_;
};

}  // namespace

std::optional<double> MeasuredCalls::seconds(std::string_view row, const CallWork& work) const {
  const std::vector<CallPoint>* const points = points_of(*this, row, work);
  if (!points) return std::nullopt;
  return counts_flops(work) ? by_nearest(*points, work) : by_neighbours(*points, work.bytes);
}

bool MeasuredCalls::covers(std::string_view row, const CallWork& work) const {
  const std::vector<CallPoint>* const points = points_of(*this, row, work);
  if (!points) return false;
  const auto amount = [&](const CallPoint& p) { return amount_of(p, work); };
  const auto [least, most] = std::ranges::minmax(*points, {}, amount);
  const double own = counts_flops(work) ? work.flops : work.bytes;
  return amount(least) <= own && own <= amount(most);
}

Calibration parse_calibration(std::string_view text, std::string_view file) {
  return CalibrationReader(text, file).read();
}

std::string print(const Calibration& c) {
  std::string calls;
  for (const auto& [row, points] : c.calls.rows) {
    std::string text;
    for (const CallPoint& p : points)
      text += fmt::format("{}[{}, {}, {}]", text.empty() ? "" : ", ", p.flops, p.bytes, p.seconds);
    calls += fmt::format("{}{}: [{}]", calls.empty() ? "" : ",\n  ", json_quoted(row), text);
  }
  return fmt::format(
      "{{\"build\": {}, \"ranks\": {}, \"threads\": {}, \"time\": {}, \"core_share\": {},\n \"device\": {} ,\"calls\": "
      "{{{}}}}}\n",
      json_quoted(c.build), c.ranks, c.threads, c.time, c.core_share, print(c.device), calls);
}

}  // namespace sherd
